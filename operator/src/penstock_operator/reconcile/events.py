"""Kubernetes Events about a pool: what changed since its last status.

The previous status is read from the API server, so a restarted operator does not repeat Events. An Event's
name is a digest of its content: if the same problem recurs, the time of its Event is updated and no other is
created. Routine actions have no Events; a restored object and a removed orphan have one each. The creation of
a new pool's objects is reported once, by `Ready`.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from penstock_operator.manifests.manifest import Manifest, ref_of
from penstock_operator.manifests.names import FIELD_MANAGER
from penstock_operator.reconcile.actions import Action, ActionReason, Apply, Delete
from penstock_operator.status.conditions import condition

MAX_MESSAGE_CHARS = 1000
"""The API server refuses Events whose message is longer than 1,024 bytes."""

DIGEST_CHARS = 12
"""Digits of the digest in an Event's name, enough for distinct names."""


@dataclass(frozen=True, slots=True)
class PoolEvent:
    """The content of a Kubernetes Event about a pool."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def pool_events(
    before: Mapping[str, Any], after: Mapping[str, Any], actions: Sequence[Action]
) -> Iterator[PoolEvent]:
    """Yield the events of a reconciliation: actions, scaling, health."""
    yield from _action_events(before, actions)
    yield from _scaling_events(before, after)
    yield from _health_events(before, after)


def _action_events(before: Mapping[str, Any], actions: Sequence[Action]) -> Iterator[PoolEvent]:
    for action in actions:
        match action:
            case Apply(manifest, ActionReason.DRIFTED, drift):
                fields = ", ".join(drift) or "fields"
                yield PoolEvent(
                    "Normal",
                    "DriftMended",
                    f"{ref_of(manifest)}: {fields} restored to the pool's values",
                )
            case Apply(manifest, ActionReason.MISSING) if before:
                yield PoolEvent("Normal", "Made", f"{ref_of(manifest)} was missing and is created")
            case Delete(ref):
                yield PoolEvent("Normal", "Removed", f"{ref} is no longer desired and is deleted")
            case _:
                pass


def _scaling_events(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[PoolEvent]:
    old, new = before.get("autoscaling"), after.get("autoscaling")
    if old and new and old.get("replicas") != new["replicas"]:
        message = f"{old.get('replicas')} to {new['replicas']} replicas: {new['message']}"
        yield PoolEvent("Normal", "Scaled", message)


def _health_events(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[PoolEvent]:
    old, new = condition(before, "Degraded"), condition(after, "Degraded")
    if new is not None and new["status"] == "True":
        if old is None or (old["status"], old["reason"]) != ("True", new["reason"]):
            yield PoolEvent("Warning", new["reason"], new["message"])
    elif old is not None and old["status"] == "True":
        yield PoolEvent("Normal", "Recovered", f"{old['reason']} is resolved")
    old_ready, ready = condition(before, "Ready"), condition(after, "Ready")
    if ready is not None and ready["status"] == "True" and (old_ready or {}).get("status") != "True":
        yield PoolEvent("Normal", "Ready", ready["message"])


def event_manifest(pool: Manifest, event: PoolEvent, now: str) -> Manifest:
    """Return the Kubernetes Event. now: RFC 3339."""
    metadata = pool["metadata"]
    content = f"{metadata['uid']}/{event.type}/{event.reason}/{event.message}"
    content_digest = hashlib.sha256(content.encode()).hexdigest()[:DIGEST_CHARS]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{content_digest}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": pool["apiVersion"],
            "kind": pool["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:MAX_MESSAGE_CHARS],
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": FIELD_MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
