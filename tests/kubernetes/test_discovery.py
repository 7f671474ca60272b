"""Replicas as a router discovers them, from a real API server with its real EndpointSlice controller.

The server is this module's own, because it is killed and restarted here.
"""

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
import yaml
from patience import PATIENCE_S, eventually
from penstock_routing.connections.api_server import Access
from penstock_routing.connections.backoff import Backoff
from penstock_routing.discovery import endpoint_watch
from penstock_routing.discovery.endpoint_watch import EndpointWatch
from penstock_routing.discovery.endpoints import Condition, Endpoint, Endpoints, Service
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_runtime.grpc.client import Channel
from scripted.replica import ScriptedReplica
from structlog.testing import capture_logs

CLUSTER = Path(__file__).parents[2] / "e2e" / "cluster"
SERVICE = "p-replicas"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
ALLOWED = ["get", "list", "watch"]
READ_SLICES = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]}


@dataclass(frozen=True, slots=True)
class Server:
    """An API server with controllers, and no nodes."""

    folder: Path

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def kill(self) -> None:
        """kill -9 of the API server; etcd continues."""
        os.kill(int((self.folder / "pid" / "kube-apiserver").read_text().split()[0]), signal.SIGKILL)

    def restart(self) -> None:
        subprocess.run([CLUSTER / "apiserver", "restart", self.folder], check=True)

    def client(self) -> httpx2.AsyncClient:
        """As the administrator."""
        return Access(self.kubeconfig).client()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-"))
    server = Server(folder / "api")
    try:
        subprocess.run([CLUSTER / "apiserver", "up", server.folder, "--controllers"], check=True)
        yield server
    finally:
        subprocess.run([CLUSTER / "apiserver", "down", server.folder], check=True)
        folder.rmdir()


@dataclass(frozen=True, slots=True)
class Namespace:
    """A fresh namespace, as the administrator."""

    name: str
    http: httpx2.AsyncClient

    async def send(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """One request, which the server has to take."""
        answer = await self.http.request(method, path.format(self.name), **options)
        assert answer.is_success, answer.text
        content = answer.json()
        assert isinstance(content, dict)
        return content

    async def write_slice(self, name: str, *endpoints: dict[str, Any], service: str = SERVICE) -> None:
        """Write a slice with these endpoints, replacing one of its name."""
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "ports": [{"name": "metrics", "port": 7001}, {"name": "replica", "port": 7000}],
            "endpoints": list(endpoints),
        }
        await self.send(
            "PATCH",
            f"{SLICES}/{name}",
            json=body,
            params={"fieldManager": "test", "force": "true"},
            headers={"content-type": "application/apply-patch+yaml"},
        )

    async def delete_slice(self, name: str) -> None:
        await self.send("DELETE", f"{SLICES}/{name}")


@pytest.fixture
async def namespace(server: Server) -> AsyncIterator[Namespace]:
    async with server.client() as http:
        answer = await http.post("/api/v1/namespaces", json={"metadata": {"generateName": "discovery-"}})
        yield Namespace(answer.json()["metadata"]["name"], http)


def endpoint(pod: str, host: int, **conditions: bool) -> dict[str, Any]:
    return {
        "addresses": [f"10.0.0.{host}"],
        "conditions": conditions or {"ready": True},
        "targetRef": {"kind": "Pod", "name": pod},
    }


def watch_of(namespace: Namespace, kubeconfig: Path | None) -> EndpointWatch:
    """Return a watch that reconnects immediately."""
    service = Service(namespace.name, SERVICE)
    return EndpointWatch(service, Access(kubeconfig).client, Backoff(Random(1), 0.01, 0.1))


class Followed:
    """A watch and its latest set of endpoints."""

    def __init__(self, watch: EndpointWatch) -> None:
        self.watch = watch
        self.now: Endpoints | None = None
        self.heard = asyncio.Event()

    async def follow(self) -> None:
        async for replicas in self.watch.sets():
            self.now = replicas
            self.heard.set()

    async def until(self, wanted: Callable[[Endpoints | None], bool]) -> None:
        """Until the set is like that."""
        async with asyncio.timeout(PATIENCE_S):
            while not wanted(self.now):
                self.heard.clear()
                await self.heard.wait()

    async def until_it_is(self, **replicas: Endpoint) -> None:
        await self.until(lambda now: now == {name.replace("_", "-"): at for name, at in replicas.items()})


@asynccontextmanager
async def followed(watch: EndpointWatch) -> AsyncIterator[Followed]:
    one = Followed(watch)
    task = asyncio.create_task(one.follow())
    yield one
    task.cancel()
    await asyncio.wait([task])


async def test_slices_are_watched_from_creation_to_deletion(server: Server, namespace: Namespace) -> None:
    async with followed(watch_of(namespace, server.kubeconfig)) as seen:
        await seen.until_it_is()
        await namespace.write_slice("a", endpoint("p-0", 1))
        await seen.until_it_is(p_0=Endpoint("10.0.0.1:7000"))
        await namespace.write_slice("b", endpoint("p-1", 2, ready=False))
        await seen.until_it_is(
            p_0=Endpoint("10.0.0.1:7000"), p_1=Endpoint("10.0.0.2:7000", Condition.NOT_READY)
        )
        await namespace.delete_slice("a")
        await seen.until_it_is(p_1=Endpoint("10.0.0.2:7000", Condition.NOT_READY))
        await namespace.delete_slice("b")
        await seen.until_it_is()


async def test_slices_of_other_services_are_ignored(server: Server, namespace: Namespace) -> None:
    await namespace.write_slice("other", endpoint("q-0", 9), service="q-replicas")
    async with followed(watch_of(namespace, server.kubeconfig)) as seen:
        await seen.until_it_is()
        await namespace.write_slice("a", endpoint("p-0", 1))
        await seen.until_it_is(p_0=Endpoint("10.0.0.1:7000"))
        await namespace.write_slice("a", endpoint("p-0", 1), service="q-replicas")  # it is theirs from now on
        await seen.until_it_is()


async def test_a_pod_is_followed_from_start_to_deletion(server: Server, namespace: Namespace) -> None:
    """Slices as Kubernetes' own controller writes them for a Service: not ready, ready, terminating, gone."""
    pods = "/api/v1/namespaces/{}/pods"
    labels = {"penstock.dev/pool": "p"}
    service = {
        "metadata": {"name": SERVICE},
        "spec": {
            "clusterIP": "None",
            "selector": labels,
            "ports": [{"name": "replica", "port": 7000, "targetPort": "replica"}],
        },
    }
    container = {
        "name": "sidecar",
        "image": "none",
        "ports": [{"name": "replica", "containerPort": 7000}],
    }
    pod = {
        "metadata": {"name": "p-replica-0", "labels": labels},
        "spec": {
            "nodeName": namespace.name,  # so that deleting it waits for a kubelet, as it does in life
            "containers": [container],
            "terminationGracePeriodSeconds": 600,
        },
    }
    await namespace.send("POST", "/api/v1/nodes", json={"metadata": {"name": namespace.name}})
    await namespace.send("POST", "/api/v1/namespaces/{}/services", json=service)
    async with followed(watch_of(namespace, server.kubeconfig)) as seen:
        await namespace.send("POST", pods, json=pod)
        await set_status(namespace, ready=False)
        await seen.until_it_is(p_replica_0=Endpoint("10.9.8.7:7000", Condition.NOT_READY))
        await set_status(namespace, ready=True)
        await seen.until_it_is(p_replica_0=Endpoint("10.9.8.7:7000"))
        await namespace.send("DELETE", f"{pods}/p-replica-0")
        await seen.until_it_is(p_replica_0=Endpoint("10.9.8.7:7000", Condition.TERMINATING))
        await namespace.send("DELETE", f"{pods}/p-replica-0", params={"gracePeriodSeconds": "0"})
        await seen.until_it_is()


async def set_status(namespace: Namespace, *, ready: bool) -> None:
    """As a kubelet does."""
    status = {
        "phase": "Running",
        "podIP": "10.9.8.7",
        "podIPs": [{"ip": "10.9.8.7"}],
        "conditions": [{"type": "Ready", "status": str(ready)}],
    }
    await namespace.send(
        "PATCH",
        "/api/v1/namespaces/{}/pods/p-replica-0/status",
        json={"status": status},
        headers={"content-type": "application/merge-patch+json"},
    )


async def test_while_the_api_server_is_unavailable_the_last_set_is_kept(
    server: Server, namespace: Namespace
) -> None:
    await namespace.write_slice("a", endpoint("p-0", 1))
    with capture_logs() as output:
        async with followed(watch_of(namespace, server.kubeconfig)) as seen:
            await seen.until_it_is(p_0=Endpoint("10.0.0.1:7000"))
            await eventually(lambda: seen.watch.connected)
            await asyncio.to_thread(server.kill)
            await eventually(lambda: not seen.watch.connected)
            await seen.until_it_is(p_0=Endpoint("10.0.0.1:7000"))
            await asyncio.to_thread(server.restart)
            await eventually(lambda: seen.watch.connected)
            async with server.client() as http:
                await Namespace(namespace.name, http).write_slice("a", endpoint("p-0", 2))
            await seen.until_it_is(p_0=Endpoint("10.0.0.2:7000"))
    changes = [line["changes"] for line in output if line["event"] == "replica set changed"]
    assert changes == ["p-0=10.0.0.1:7000/in_service", "p-0=10.0.0.2:7000/in_service"]
    assert "cluster watched again" in [line["event"] for line in output]


async def test_a_watch_that_timed_out_continues_from_its_version(
    server: Server, namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its account may no longer list, so it has to continue from its version."""
    monkeypatch.setattr(endpoint_watch, "WATCH_S", 1)
    watches = 0

    kubeconfig = await account(namespace, server, tmp_path, ["list", "watch"])

    def client() -> httpx2.AsyncClient:
        nonlocal watches
        watches += 1
        return Access(kubeconfig).client()

    watch = EndpointWatch(Service(namespace.name, SERVICE), client, Backoff(Random(1), 0.01, 0.1))
    async with followed(watch) as seen:
        await eventually(lambda: watch.connected)
        await allow(namespace, ["watch"])
        await eventually(lambda: watches > 2 and watch.connected)
        await namespace.write_slice("a", endpoint("p-0", 1))
        await seen.until_it_is(p_0=Endpoint("10.0.0.1:7000"))


async def test_events_too_old_for_a_watch_are_listed_again(server: Server, namespace: Namespace) -> None:
    """The server no longer has so old a version (410), so endpoints removed since then must go as well."""
    await namespace.write_slice("a", endpoint("p-0", 1))
    watch = watch_of(namespace, server.kubeconfig)
    async with followed(watch) as seen:
        await seen.until_it_is(p_0=Endpoint("10.0.0.1:7000"))
    await namespace.delete_slice("a")
    watch._version = "1"
    with capture_logs() as output:
        async with followed(watch) as seen:
            await seen.until_it_is()
            await eventually(lambda: watch.connected)
    assert any("410" in line.get("why", "") for line in output)


async def test_an_account_needs_only_get_list_and_watch_on_slices(
    server: Server, namespace: Namespace, tmp_path: Path
) -> None:
    kubeconfig = await account(namespace, server, tmp_path, ["list"])
    await namespace.write_slice("a", endpoint("p-0", 1))
    with capture_logs() as output:
        async with followed(watch_of(namespace, kubeconfig)) as seen:
            await seen.until_it_is(p_0=Endpoint("10.0.0.1:7000"))
            await eventually(lambda: any(line["event"] == "cluster not watched" for line in output))
            await allow(namespace, ALLOWED)
            await eventually(lambda: seen.watch.connected)
            await namespace.write_slice("a", endpoint("p-0", 2))
            await seen.until_it_is(p_0=Endpoint("10.0.0.2:7000"))
    [refused] = [line["why"] for line in output if line["event"] == "cluster not watched"]
    assert 'cannot watch resource "endpointslices"' in refused


async def test_a_rotated_token_is_read_again(server: Server, namespace: Namespace, tmp_path: Path) -> None:
    kubeconfig = await account(namespace, server, tmp_path, ALLOWED)
    good = (tmp_path / "token").read_text()
    (tmp_path / "token").write_text("an old one")
    with capture_logs() as output:
        async with followed(watch_of(namespace, kubeconfig)) as seen:
            await eventually(lambda: any("401" in line.get("why", "") for line in output))
            (tmp_path / "token").write_text(good)
            await seen.until_it_is()


async def test_the_pods_own_account_suffices(
    server: Server, namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await account(namespace, server, tmp_path, ALLOWED)
    (tmp_path / "ca.crt").write_bytes((server.folder / "pki" / "ca.crt").read_bytes())
    (tmp_path / "namespace").write_text(namespace.name)
    url = httpx2.URL(server_url(server))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", url.host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(url.port))
    service = Service(namespace.name, SERVICE)
    watch = EndpointWatch(service, Access(None, account=tmp_path).client, Backoff(Random(1), 0.01, 0.1))
    async with followed(watch) as seen:
        await seen.until_it_is()
        await eventually(lambda: watch.connected)


def server_url(server: Server) -> str:
    config = yaml.safe_load(server.kubeconfig.read_text())
    return str(config["clusters"][0]["cluster"]["server"])


async def account(namespace: Namespace, server: Server, folder: Path, verbs: list[str]) -> Path:
    """Return a kubeconfig of a service account with these rights on slices. Its token is in a file."""
    accounts = "/api/v1/namespaces/{}/serviceaccounts"
    await namespace.send("POST", accounts, json={"metadata": {"name": "router"}})
    await allow(namespace, verbs)
    binding = {
        "metadata": {"name": "router"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "router"},
        "subjects": [{"kind": "ServiceAccount", "name": "router", "namespace": namespace.name}],
    }
    roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}"
    await namespace.send("POST", f"{roles}/rolebindings", json=binding)
    token = await namespace.send("POST", f"{accounts}/router/token", json={"spec": {}})
    (folder / "token").write_text(token["status"]["token"])
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": server_url(server),
                    "certificate-authority": str(server.folder / "pki" / "ca.crt"),
                },
            }
        ],
        "users": [{"name": "u", "user": {"tokenFile": str(folder / "token")}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return folder / "kubeconfig"


async def allow(namespace: Namespace, verbs: list[str]) -> None:
    """Set the account's permissions."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "router"},
        "rules": [{**READ_SLICES, "verbs": verbs}],
    }
    await namespace.send(
        "PATCH",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles/router",
        json=role,
        params={"fieldManager": "test", "force": "true"},
        headers={"content-type": "application/apply-patch+yaml"},
    )


async def test_requests_go_to_the_slices_endpoints(server: Server, namespace: Namespace) -> None:
    """The API server takes no loopback addresses; links connect to the replicas behind its own."""
    r0, r1 = ScriptedReplica("p-0"), ScriptedReplica("p-1")
    behind = {"10.0.0.1:7000": r0, "10.0.0.2:7000": r1}

    def link(name: str, address: str, changed: Callable[[], None]) -> ReplicaLink:
        def connect(address: str) -> Channel:
            return Channel(behind[address].address)

        return ReplicaLink(name, address, connect, Backoff(Random(1), 0.005, 0.02), changed=changed)

    for replica in (r0, r1):
        await replica.start()
    replica_set = ReplicaSet(link)
    following = asyncio.create_task(replica_set.follow(watch_of(namespace, server.kubeconfig)))
    await namespace.write_slice("a", endpoint("p-0", 1), endpoint("p-1", 2))
    await eventually(lambda: len(replica_set.loads()) == 2)
    await namespace.write_slice(
        "a", endpoint("p-0", 1), endpoint("p-1", 2, ready=False, serving=True, terminating=True)
    )
    await eventually(lambda: [load.name for load in replica_set.loads()] == ["p-0"])
    assert r1.open_sessions == 1
    await namespace.write_slice("a", endpoint("p-0", 1))
    await eventually(lambda: r1.open_sessions == 0)
    following.cancel()
    await asyncio.wait([following])
    for replica in (r0, r1):
        await replica.die()
