"""Operators that are killed, that share the work, that see a part of it; API servers that restart."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
from kube.api_server import DEFINITION, SCRIPTS
from kube.kubectl import Kubectl
from operating.account import operator_account, operator_home
from operating.eventually import eventually
from operating.process import OperatorProcess, operator_process
from operating.world import World, pool_document

Start = Callable[..., OperatorProcess]


@pytest.fixture
def home(client: httpx2.Client) -> Iterator[str]:
    with operator_home(client) as home:
        yield home


@pytest.fixture
def start(apiserver: Path, home: str, world: World, tmp_path: Path) -> Iterator[Start]:
    """Starts operators of the test's namespace only, with Roles there and no permission in others."""
    kubeconfig = operator_account(world.client, apiserver, home, tmp_path, (world.namespace,))
    with ExitStack() as running:
        count = iter(range(100))

        def one(*flags: str, ready: bool = True) -> OperatorProcess:
            log, everyone = tmp_path / f"log-{next(count)}", (f"--namespaces={world.namespace}", *flags)
            if ready:
                return running.enter_context(operator_process(kubeconfig, log, *everyone))
            operator = OperatorProcess(kubeconfig, log, *everyone)
            running.callback(operator.kill)
            return operator

        yield one


def test_a_repeatedly_killed_operator_finally_converges(world: World, start: Start) -> None:
    world.make("ServingPool", pool_document())
    for acts in range(1, 6):
        operator = start()
        has_acted(operator, world, acts)
        operator.kill()
    world.change("ServingPool", "chat", {"spec": {"replicas": 3}})
    operator = start()
    operator.kill()
    start()
    eventually(lambda: world.pool()["status"]["readyReplicas"] == 3)
    world.ready()
    keys = world.get("Secret", "chat-tls")
    assert keys is not None
    for kind in ("StatefulSet", "Deployment", "Service", "ConfigMap", "Secret"):
        uids = [
            made["metadata"]["ownerReferences"][0]["uid"]
            for made in world.all(kind, "penstock.dev/pool=chat")
        ]
        assert set(uids) == {world.pool()["metadata"]["uid"]}


def has_acted(operator: OperatorProcess, world: World, times: int) -> None:
    """Wait until the operator has acted this often, or has finished."""
    eventually(
        lambda: operator.printed_text().count("event=executed") >= times or world.condition("Ready")[0]
    )


def test_changes_made_without_an_operator_are_reconciled_after_its_start(world: World, start: Start) -> None:
    operator = start()
    world.make("ServingPool", pool_document("leaves"))
    world.make("ServingPool", pool_document("stays"))
    world.ready("leaves")
    world.ready("stays")
    assert operator.stop() == 0
    world.delete("ServingPool", "leaves")
    world.delete("Service", "stays")
    world.change("ServingPool", "stays", {"spec": {"replicas": 1}})
    world.make("ServingPool", pool_document("comes"))
    world.await_absence(lambda: world.get("StatefulSet", "leaves-replica"))
    start()
    world.ready("comes")
    eventually(lambda: world.get("Service", "stays"))
    eventually(lambda: world.pool("stays")["status"]["replicas"] == 1)


def test_a_namespaced_operator_acts_only_in_its_namespace(
    world: World, start: Start, client: httpx2.Client
) -> None:
    operator = start()
    body = {"metadata": {"generateName": "elsewhere-"}}
    other = client.post("/api/v1/namespaces", json=body).raise_for_status().json()["metadata"]["name"]
    remote = World(client, other)
    remote.make("ServingPool", pool_document())
    world.make("ServingPool", pool_document())
    world.ready()
    assert "status" not in remote.pool()
    assert remote.all("StatefulSet") == []
    assert "forbidden" not in operator.printed_text()
    client.delete(f"/api/v1/namespaces/{other}").raise_for_status()


def test_a_standby_takes_over_when_the_leader_is_killed(world: World, start: Start, home: str) -> None:
    first = start(f"--lease-namespace={home}")
    eventually(lambda: first.metric("penstock_operator_leading") == 1)
    second = start(f"--lease-namespace={home}")
    world.make("ServingPool", pool_document())
    world.ready()
    assert second.metric("penstock_operator_leading") == 0
    assert second.metric("penstock_operator_actions_total") == 0
    first.kill()
    world.delete("Service", "chat")
    eventually(lambda: second.metric("penstock_operator_leading") == 1)
    eventually(lambda: world.get("Service", "chat"))


def test_a_frozen_leader_does_not_write_once_another_leads(world: World, start: Start, home: str) -> None:
    frozen = start(f"--lease-namespace={home}")
    eventually(lambda: frozen.metric("penstock_operator_leading") == 1)
    standby = start(f"--lease-namespace={home}")
    pools = [f"pool-{number}" for number in range(20)]
    for pool in pools:
        world.make("ServingPool", pool_document(pool))
    eventually(lambda: world.all("ConfigMap", "app.kubernetes.io/managed-by=penstock-operator"))
    frozen.freeze()
    assert len(world.all("Deployment")) < len(pools) / 2, "no pool waits for a worker any more"
    eventually(lambda: standby.metric("penstock_operator_leading") == 1)
    for pool in pools:
        world.change("ServingPool", pool, {"spec": {"replicas": 1}})
    for pool in pools:
        eventually(lambda name=pool: made_smaller(world, name))  # type: ignore[misc]
        world.ready(pool)
    before = {kind: versions(world, kind) for kind in ("StatefulSet", "Deployment", "ConfigMap", "Service")}
    frozen.thaw()
    eventually(lambda: "reconcile aborted" in frozen.printed_text())
    assert frozen.metric("penstock_operator_leading") == 0
    assert {kind: versions(world, kind) for kind in before} == before


def made_smaller(world: World, pool: str) -> bool:
    return bool(world.pool(pool).get("status", {}).get("readyReplicas") == 1)


def versions(world: World, kind: str) -> dict[str, object]:
    """By name: the generation, which statuses leave as it is; the resource version of kinds without one."""
    metadata = [
        made["metadata"] for made in world.all(kind, "app.kubernetes.io/managed-by=penstock-operator")
    ]
    return {each["name"]: each.get("generation", each["resourceVersion"]) for each in metadata}


def test_an_operator_that_stops_releases_the_lease(start: Start, home: str, client: httpx2.Client) -> None:
    first = start(f"--lease-namespace={home}")
    eventually(lambda: first.metric("penstock_operator_leading") == 1)
    assert first.stop() == 0
    path = f"/apis/coordination.k8s.io/v1/namespaces/{home}/leases/penstock-operator"
    lease = client.get(path).raise_for_status().json()
    assert lease["spec"].get("holderIdentity", "") == ""


def test_a_restarted_api_server_interrupts_the_operator_only_briefly(
    world: World, start: Start, apiserver: Path
) -> None:
    operator = start()
    world.make("ServingPool", pool_document())
    world.ready()
    subprocess.run([SCRIPTS / "apiserver", "restart", apiserver.parent], check=True, timeout=120)
    world.change("ServingPool", "chat", {"spec": {"replicas": 3}})
    eventually(lambda: world.pool()["status"].get("readyReplicas") == 3)
    world.delete("ConfigMap", "chat-router")
    eventually(lambda: world.get("ConfigMap", "chat-router"))
    assert operator.page("/health").status_code == 200


def test_a_definition_of_another_release_is_logged_in_one_line(
    world: World, start: Start, kubectl: Kubectl
) -> None:
    older = kubectl.get("crd", "servingpools.penstock.dev")
    properties = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    patch = [{"op": "remove", "path": SCHEMA + "/spec/properties/monitoring"}]
    assert "monitoring" in properties["spec"]["properties"]
    try:
        changed(kubectl, patch)
        operator = start()
        eventually(lambda: "lacks spec.monitoring" in operator.printed_text())
        assert "kubectl apply --server-side -f crds/servingpools.yaml" in operator.printed_text()
        patch = [{"op": "remove", "path": SCHEMA + "/status/properties/autoscaling"}]
        changed(kubectl, patch)
        silent = start(ready=False)
        assert silent.process.wait(60) == 1
        assert "which could not report status.autoscaling" in silent.printed_text()
        assert "Traceback" not in silent.printed_text()
    finally:
        kubectl.out("apply", "--server-side", "--force-conflicts", "--filename", DEFINITION)


SCHEMA = "/spec/versions/0/schema/openAPIV3Schema/properties"


def changed(kubectl: Kubectl, patch: list[dict[str, str]]) -> None:
    """Changes the definition, and waits until the server publishes it so."""
    kubectl.out("patch", "crd", "servingpools.penstock.dev", "--type=json", f"--patch={json.dumps(patch)}")
    field = patch[0]["path"].rpartition("/")[2]
    part = "status" if "/status/" in patch[0]["path"] else "spec"

    def published() -> bool:
        page = json.loads(kubectl.out("get", "--raw", "/openapi/v3/apis/penstock.dev/v1alpha1"))
        schemas = page["components"]["schemas"]
        (pool,) = [found for name, found in schemas.items() if name.endswith(".ServingPool")]
        return field not in pool["properties"][part]["properties"]

    eventually(published)


def test_invalid_settings_end_the_operator_with_one_line(apiserver: Path, tmp_path: Path) -> None:
    nonsense = {"PENSTOCK_TLS": "maybe"}
    operator = OperatorProcess(apiserver, tmp_path / "log", environment=nonsense)
    assert operator.process.wait(60) == 2
    assert operator.printed_text() == 'PENSTOCK_TLS: "maybe" is neither on nor off\n'
