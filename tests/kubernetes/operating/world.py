"""A namespace in which tests write and read pools, and set the status of pods as a kubelet does."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2
from operating.eventually import eventually
from penstock_operator.cluster.kinds import EVENT, POD, POOL, WATCHED, ResourceKind

Object = dict[str, Any]
KINDS = {kind.kind: kind for kind in (POOL, EVENT, *WATCHED)} | {
    "Secret": ResourceKind("v1", "Secret", "secrets"),
    "PersistentVolumeClaim": ResourceKind("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    "ResourceQuota": ResourceKind("v1", "ResourceQuota", "resourcequotas"),
}


def pool_document(name: str = "chat", **spec: Any) -> Object:
    """Return a small pool of simulated engines. spec: fields that replace its own."""
    return {
        "apiVersion": POOL.api_version,
        "kind": POOL.kind,
        "metadata": {"name": name},
        "spec": {
            "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
            "engine": {"type": "simulated", "timeModel": "llama-3-8b-a100", "kvCacheTokens": 43296},
            "replicas": 2,
            "tiers": [
                {"name": "chat", "slo": {"ttft": "1s", "tpot": "100ms"}},
                {"name": "batch", "bestEffort": True},
            ],
            "router": {"replicas": 1},
        }
        | spec,
    }


@dataclass(frozen=True, slots=True)
class World:
    """One namespace, as its administrator."""

    client: httpx2.Client
    namespace: str

    def make(self, kind: str, body: Object) -> Object:
        """Create an object and return it."""
        path = KINDS[kind].path(self.namespace)
        answer = self.client.post(path, json=body | {"apiVersion": KINDS[kind].api_version, "kind": kind})
        assert answer.is_success, answer.text
        return dict(answer.json())

    def get(self, kind: str, name: str) -> Object | None:
        """Return an object, or None."""
        answer = self.client.get(KINDS[kind].path(self.namespace, name))
        return None if answer.status_code == 404 else dict(answer.raise_for_status().json())

    def all(self, kind: str, labels: str = "") -> list[Object]:
        """Return every object of a kind."""
        answer = self.client.get(KINDS[kind].path(self.namespace), params={"labelSelector": labels})
        return list(answer.raise_for_status().json()["items"])

    def change(self, kind: str, name: str, patch: Object, part: str | None = None) -> Object:
        """Merges a change into an object. part: a subresource."""
        answer = self.client.patch(
            KINDS[kind].path(self.namespace, name, part),
            json=patch,
            headers={"content-type": "application/merge-patch+json"},
        )
        assert answer.is_success, answer.text
        return dict(answer.json())

    def delete(self, kind: str, name: str) -> None:
        """Deletes an object."""
        self.client.delete(KINDS[kind].path(self.namespace, name)).raise_for_status()

    def pool(self, name: str = "chat") -> Object:
        """Return a pool, which must exist."""
        found = self.get("ServingPool", name)
        assert found is not None, f"no pool {name}"
        return found

    def condition(self, type_: str, pool: str = "chat") -> tuple[str, str, str]:
        """Return a condition's status, reason and message; three empty strings without one."""
        for found in self.pool(pool).get("status", {}).get("conditions", ()):
            if found["type"] == type_:
                return found["status"], found["reason"], found["message"]
        return "", "", ""

    def until(self, type_: str, status: str, reason: str = "", pool: str = "chat") -> str:
        """Wait for a condition and return its message."""

        def matching() -> tuple[str, str, str] | None:
            reported = self.condition(type_, pool)
            return reported if reported[0] == status and reason in ("", reported[1]) else None

        try:
            return eventually(matching)[2]
        except AssertionError:
            raise AssertionError(f"no {type_}={status} {reason}: {self.pool(pool).get('status')}") from None

    def ready(self, pool: str = "chat") -> None:
        """Waits until the pool is up and at rest."""
        self.until("ReplicasReady", "True", pool=pool)
        self.until("RouterReady", "True", pool=pool)
        self.until("Progressing", "False", pool=pool)

    def events(self, reason: str, pool: str = "chat") -> list[str]:
        """Messages of the Events about a pool."""
        return [
            event["message"]
            for event in self.all("Event")
            if event["reason"] == reason and event["involvedObject"].get("name") == pool
        ]

    def pods(self, component: str, pool: str = "chat") -> list[Object]:
        """Return a component's pods that are not being deleted."""
        labels = f"penstock.dev/pool={pool},app.kubernetes.io/component={component}"
        return [pod for pod in self.all("Pod", labels) if "deletionTimestamp" not in pod["metadata"]]

    def as_kubelet(self, pod: Object, status: Object) -> None:
        """Set a pod's status as its node does."""
        self.change("Pod", pod["metadata"]["name"], {"status": status}, "status")

    def await_absence(self, *matching: Callable[[], object]) -> None:
        """Wait until each returns a false value."""
        for each in matching:
            eventually(lambda each=each: not each())  # type: ignore[misc]


PODS = POD.plural
