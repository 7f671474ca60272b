"""Demand that routers count becomes attainment in a pool's status, and replicas.

Pods do not run here, so the test serves a router's page and gives its address to the router's pod.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kube.kubectl import Kubectl
from operating.account import operator_account, operator_home
from operating.eventually import eventually
from operating.process import operator_process
from operating.world import World, pool_document
from penstock_operator.manifests.names import ADMIN_PORT

ADDRESS = "127.0.77.1"
COUNTERS = (
    "arrived",
    "admitted",
    "best_effort",
    "rejected",
    "never",
    "hops",
    "judged",
    "met",
    "all_judged",
    "all_met",
)
AUTOSCALING = {"minReplicas": 1, "maxReplicas": 4, "scaleUp": {"stabilizationWindow": "0s"}}


class Router:
    """A router's demand page. Each answer first adds `increase` to the counters."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.increase: dict[str, int] = {}
        self.since_s = 100.0
        self.requests = 0

    def page(self) -> bytes:
        self.requests += 1
        self.since_s += 10
        for counter, more in self.increase.items():
            self.counts[counter] += more
        page: dict[str, Any] = {
            "held": 0,
            "since_s": self.since_s,
            "tiers": {"chat": self.counts},
            "replicas": [],
        }
        return json.dumps(page).encode()


@contextmanager
def serving(router: Router) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = router.page()
            self.send_response(200 if self.path == "/penstock/v1/demand" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((ADDRESS, ADMIN_PORT), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def router() -> Iterator[Router]:
    router = Router()
    with serving(router):
        yield router


def give_address(world: World) -> None:
    """Give the pool's router pod the test's address."""
    (pod,) = world.pods("router")
    world.as_kubelet(pod, {"podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]})


def reconcile_again(world: World, router: Router) -> None:
    """Cause a reconciliation of the pool, and wait for it."""
    requested = router.requests
    world.change("ConfigMap", "chat-router", {"metadata": {"annotations": {"reconcile": str(requested)}}})
    eventually(lambda: router.requests > requested)


def scaled(world: World) -> dict[str, Any]:
    return dict(world.pool()["status"].get("autoscaling", {}))


def test_rejected_demand_adds_replicas_and_a_restart_keeps_the_learned_capacity(
    world: World, router: Router, kubectl: Kubectl, tmp_path: Path
) -> None:
    with operator_home(world.client) as home:
        served = (world.namespace,)
        kubeconfig = operator_account(world.client, kubectl.kubeconfig, home, tmp_path, served)
        flags = f"--namespaces={world.namespace}"
        with operator_process(kubeconfig, tmp_path / "first", flags):
            world.make("ServingPool", pool_document(replicas=1, autoscaling=AUTOSCALING))
            world.ready()
            give_address(world)
            router.increase = {"arrived": 100, "admitted": 40, "rejected": 60, "hops": 100}

            def more() -> bool:
                reconcile_again(world, router)
                return bool(scaled(world).get("replicas", 0) > 1)

            eventually(more)
            eventually(lambda: world.events("Scaled"))
            router.increase = {}
            eventually(lambda: world.pool()["status"]["readyReplicas"] == scaled(world)["replicas"])
        decided = scaled(world)
        assert decided["startedFrom"] == 1
        assert decided["lastScaleTime"]
        assert world.condition("Autoscaling")[0] == "True"
        learned = world.get("ConfigMap", "chat-learned")
        assert learned is not None
        assert float(learned["data"]["capacityRps"]) > 0
        with operator_process(kubeconfig, tmp_path / "second", flags) as second:
            eventually(lambda: second.metric("penstock_operator_reconcile_seconds_count") > 0)
            reconcile_again(world, router)
            assert scaled(world)["replicas"] == decided["replicas"]
            stateful = world.get("StatefulSet", "chat-replica")
            assert stateful is not None
            assert stateful["spec"]["replicas"] == decided["replicas"]
            kubectl.out("scale", "servingpool", "chat", "--replicas=2")
            eventually(lambda: scaled(world).get("startedFrom") == 2)
            assert scaled(world)["replicas"] == 2


@pytest.mark.usefixtures("operator")
def test_attainment_is_computed_from_the_routers_counts(world: World, router: Router) -> None:
    router.counts |= {"all_judged": 1000, "all_met": 982}
    world.make("ServingPool", pool_document())
    world.ready()
    give_address(world)
    eventually(lambda: world.pool()["status"].get("attainment") == "98.2%")
    assert world.pool()["status"]["tiers"] == [{"name": "chat", "attainment": 0.982, "requests": 1000}]


@pytest.mark.usefixtures("operator")
def test_a_pool_without_demand_scales_to_zero_and_a_held_request_starts_it(
    world: World, router: Router
) -> None:
    asleep = AUTOSCALING | {"minReplicas": 0, "idleTimeout": "1s", "scaleDown": {"stabilizationWindow": "0s"}}
    world.make("ServingPool", pool_document(replicas=1, autoscaling=asleep))
    world.ready()
    give_address(world)

    def sleeps() -> bool:
        reconcile_again(world, router)
        return world.condition("Ready")[1] == "Asleep"

    eventually(sleeps)
    assert world.condition("ReplicasReady")[:2] == ("True", "NoneWanted")
    router.page = lambda: _held(router)  # type: ignore[method-assign]

    def wakes() -> bool:
        reconcile_again(world, router)
        return bool(scaled(world)["replicas"] >= 1)

    eventually(wakes)
    eventually(lambda: world.condition("Ready")[1] == "Serving")


def _held(router: Router) -> bytes:
    router.requests += 1
    router.since_s += 10
    tiers = {"chat": router.counts}
    return json.dumps({"held": 1, "since_s": router.since_s, "tiers": tiers, "replicas": []}).encode()
