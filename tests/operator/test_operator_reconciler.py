"""One reconciliation of a pool, with an API server in memory: its writes, and the time of the next one."""

import asyncio
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest
from clusterless.memory_api import MemoryApi
from clusterless.pool import KEY, REF, pool_document
from penstock_operator.autoscaling.autoscaler import DECISION_PERIOD_S
from penstock_operator.cluster.api_client import ApiStatusError
from penstock_operator.cluster.cache import Cache
from penstock_operator.cluster.kinds import POOL, WATCHED
from penstock_operator.demand.demand_page import ATTAINMENT, COUNTERS, DemandReport
from penstock_operator.manifests.manifest import Manifest, Ref
from penstock_operator.manifests.names import ADMIN_PORT, METRICS_PORT
from penstock_operator.metrics import OperatorMetrics
from penstock_operator.reconcile import reconciler
from penstock_operator.reconcile.reconciler import HEALTHY_PERIOD_S, MIN_RECHECK_S, Reconciler
from penstock_operator.settings import OperatorSettings
from penstock_operator.status.conditions import condition
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

SCALING = {"minReplicas": 1, "maxReplicas": 8, "scaleUp": {"stabilizationWindow": "0s"}}
NOW_S = 1_000_000_000.0
NOW = "2001-09-09T01:46:40Z"


class Server(MemoryApi):
    """refusing: what writes of a kind are refused with."""

    def __init__(self, *objects: Manifest) -> None:
        super().__init__()
        self.refusing: dict[str, ApiStatusError] = {}
        for each in objects:
            self.store(each, "kubectl")

    async def apply(self, manifest: Manifest, subresource: str | None = None) -> Manifest:
        of = "status" if subresource == "status" else manifest["kind"]
        if of in self.refusing:
            raise self.refusing[of]
        return await super().apply(manifest, subresource)

    def events(self) -> dict[str, str]:
        """Reasons and messages of the Events that were posted."""
        return {one["reason"]: one["message"] for ref, one in self.objects.items() if ref.kind == "Event"}


class Routers:
    """Answers for the pool's routers or sidecars. asked: the pods of each round, with the port."""

    def __init__(self) -> None:
        self.readings: list[DemandReport] = []
        self.asked: list[tuple[list[str], int]] = []

    async def fetch(self, pods: Sequence[Manifest], port: int) -> tuple[DemandReport, ...]:
        self.asked.append(([pod["metadata"]["name"] for pod in pods], port))
        return tuple(self.readings)


class World:
    """A pool, its API server, its routers and an operator. Time stops unless a test advances it."""

    def __init__(self, document: Manifest, *, tls: bool = False) -> None:
        self.server, self.routers, self.cache = Server(document), Routers(), Cache()
        self.registry = CollectorRegistry()
        images = ("router:1", "picker:1", "envoy:1", "sidecar:1", "simulator:1", "vllm:1", "plugin:1")
        api: Any = self.server
        routers: Any = self.routers
        self.reconciler = Reconciler(
            api, self.cache, routers, OperatorSettings(*images, tls=tls), OperatorMetrics(self.registry)
        )

    def reconciled(self) -> float | None:
        """List everything and reconcile; the seconds until the next time."""

        async def story() -> float | None:
            for kind in (POOL, *WATCHED):
                asked = self.cache.state(kind)
                listed, version = await self.server.list(kind)
                self.cache.replace(kind, None, listed, version, asked)
            return await self.reconciler.reconcile(KEY)

        return asyncio.run(story())

    @property
    def pool(self) -> Manifest:
        return self.server.objects[REF]

    def of(self, type_: str) -> tuple[str, str]:
        """Status and reason of a condition."""
        found = condition(self.pool["status"], type_)
        assert found is not None
        return found["status"], found["reason"]

    def replicas(self) -> int:
        made = self.server.objects[Ref("apps/v1", "StatefulSet", "team", "chat-replica")]
        return int(made["spec"]["replicas"])

    def add_pod(self, name: str, component: str, *, ready: bool = True) -> None:
        labels = {
            "penstock.dev/pool": "chat",
            "app.kubernetes.io/component": component,
            "app.kubernetes.io/managed-by": "penstock-operator",
        }
        conditions = [{"type": "Ready", "status": str(ready)}]
        self.server.store(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "team", "labels": labels, "uid": f"uid-of-{name}"},
                "status": {"podIP": "10.0.0.1", "conditions": conditions},
            },
            "kubelet",
        )

    def settle(self) -> None:
        """Set the status of workloads as the cluster's controllers do."""
        for kind in ("StatefulSet", "Deployment"):
            for ref, made in list(self.server.objects.items()):
                if ref.kind == kind:
                    count = made["spec"].get("replicas", 1)
                    names = ("replicas", "readyReplicas", "updatedReplicas")
                    status = dict.fromkeys(names, count) | {"observedGeneration": 1}
                    self.server.store(deepcopy(made) | {"status": status}, "controller")


def reading(pod: str = "router-0", *, since_s: float = 60.0, **counts: int) -> DemandReport:
    tier = dict.fromkeys((*COUNTERS, *ATTAINMENT), 0) | counts
    return DemandReport(f"uid-of-{pod}", since_s, 0, {"chat": tier})


class Clock:
    """The reconciler's clock."""

    now_s = NOW_S

    def time(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reconciler, "time", clock)
    return clock


def test_a_pool_gets_its_objects_and_its_status() -> None:
    world = World(pool_document())
    requeue_after_s = world.reconciled()
    assert world.replicas() == 2
    assert (world.of("Degraded"), world.of("Progressing")[0]) == (("False", "AsWanted"), "True")
    assert world.pool["status"]["conditions"][0]["lastTransitionTime"] == NOW
    assert requeue_after_s == MIN_RECHECK_S


def test_keys_are_created_once_and_kept() -> None:
    world = World(pool_document(), tls=True)
    world.reconciled()
    secrets = {ref: deepcopy(one) for ref, one in world.server.objects.items() if ref.kind == "Secret"}
    assert len(secrets) == 2
    world.reconciled()
    assert {ref: one for ref, one in world.server.objects.items() if ref.kind == "Secret"} == secrets


def test_a_healthy_pool_is_reconciled_later_without_writes() -> None:
    world = World(pool_document())
    world.reconciled()
    world.settle()
    assert world.reconciled() == HEALTHY_PERIOD_S
    written = len(world.server.writes)
    assert world.reconciled() == HEALTHY_PERIOD_S
    assert world.server.writes[written:] == []
    assert world.of("Ready") == ("True", "Serving")


def test_an_unchanged_pool_is_reconciled_less_often(clock: Clock) -> None:
    world = World(pool_document())
    waits_s = []
    for after_s in (0.0, 20.0, 60.0, 1000.0):
        clock.now_s = NOW_S + after_s
        waits_s.append(world.reconciled())
    assert waits_s == [MIN_RECHECK_S, MIN_RECHECK_S, 15.0, HEALTHY_PERIOD_S]


def test_a_deleted_or_terminating_pool_is_forgotten() -> None:
    world = World(pool_document())
    world.reconciled()
    assert list(world.reconciler.pool_states) == [KEY]
    world.pool["metadata"]["deletionTimestamp"] = NOW
    world.pool["metadata"]["resourceVersion"] = "9999"
    written = len(world.server.writes)
    assert world.reconciled() is None
    assert (world.reconciler.pool_states, world.server.writes[written:]) == ({}, [])
    del world.server.objects[REF]
    assert world.reconciled() is None


def test_an_invalid_pool_is_reported_and_its_objects_stay() -> None:
    world = World(pool_document())
    world.reconciled()
    objects = {ref for ref in world.server.objects if ref.kind != "Event"}
    world.server.store(pool_document(replicas=-1, router={"replicas": 3}), "kubectl")
    assert world.reconciled() == HEALTHY_PERIOD_S
    assert {ref for ref in world.server.objects if ref.kind != "Event"} == objects
    assert world.of("Degraded") == ("True", "SpecInvalid")
    assert world.of("Ready") == ("False", "SpecInvalid")
    found = condition(world.pool["status"], "Degraded")
    assert found is not None
    assert found["message"].startswith("spec.replicas: ")
    routers = condition(world.pool["status"], "RouterReady")
    assert routers is not None
    assert routers["message"].startswith("0 of 3 routers ready")


def test_an_invalid_pool_without_the_usual_fields_is_reported() -> None:
    world = World(pool_document(teleport=True))
    del world.pool["spec"]["replicas"]
    world.pool["status"] = {"autoscaling": {"replicas": 3, "reason": "settled", "message": "as it was"}}
    world.reconciled()
    status = world.pool["status"]
    assert (status["policy"], status["autoscaling"]["replicas"]) == ("", 3)
    messages = [(condition(status, type_) or {})["message"] for type_ in ("ReplicasReady", "RouterReady")]
    assert [message.partition(" ready")[0] for message in messages] == ["0 of 1 replica", "0 of 2 routers"]


def test_all_problems_of_an_invalid_pool_are_named() -> None:
    world = World(pool_document(replicas=-1, teleport=True))
    world.reconciled()
    found = condition(world.pool["status"], "Degraded")
    assert found is not None
    assert "spec.replicas: " in found["message"]
    assert "; " in found["message"]
    assert "pool: " not in found["message"]


def test_a_pool_that_is_corrected_is_read_again() -> None:
    world = World(pool_document(replicas=-1))
    world.reconciled()
    world.server.store(pool_document(replicas=3), "kubectl")
    world.reconciled()
    assert world.replicas() == 3
    assert world.of("Degraded")[0] == "False"
    assert world.server.events()["Recovered"] == "SpecInvalid is resolved"


def test_a_recreated_pool_starts_without_the_memory_of_the_old_one() -> None:
    world = World(pool_document())
    world.reconciled()
    known = world.reconciler.pool_states[KEY]
    world.reconciled()
    assert world.reconciler.pool_states[KEY] is known
    del world.server.objects[REF]
    world.server.store(pool_document(), "kubectl")
    world.reconciled()
    assert world.reconciler.pool_states[KEY] is not known


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": "engine"},
        {"containers": ["engine"]},
        {"containers": [{"name": {"engine": 1}}]},
        {"initContainers": 5},
        {"initContainers": None},
        {"containers": [{"name": "engine", "env": "A=1", "envFrom": [5, {"secretRef": "s"}]}]},
        {"containers": [{"name": "engine", "env": [{"name": "A", "valueFrom": "s"}]}]},
        {
            "containers": [
                {"name": "engine", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"key": "k"}}}]}
            ]
        },
        {"volumes": [{"name": "v", "secret": {}}, {"name": "w", "persistentVolumeClaim": {}}]},
        {"volumes": [5, {"name": "v", "projected": {"sources": {"secret": "s"}}}]},
        {"volumes": "v", "imagePullSecrets": ["registry", {"name": 5}]},
    ],
)
def test_a_pod_template_of_a_wrong_shape_is_applied_for_the_api_server_to_refuse(spec: Manifest) -> None:
    engine = {"type": "simulated", "timeModel": "llama-3-8b-a100", "podTemplate": {"spec": spec}}
    world = World(pool_document(engine=engine))
    world.server.refusing["StatefulSet"] = ApiStatusError(422, "Invalid", "spec.template: wrong")
    world.reconciled()
    assert world.of("Degraded") == ("True", "ApiRefused")


def test_a_missing_object_is_created_again_and_reported() -> None:
    world = World(pool_document())
    world.reconciled()
    ref = Ref("v1", "Service", "team", "chat")
    del world.server.objects[ref]
    world.reconciled()
    assert ref in world.server.objects
    assert world.server.events()["Made"] == f"{ref} was missing and is created"


def test_an_object_that_a_changed_pool_desires_for_the_first_time_is_not_reported_as_lost_before() -> None:
    world = World(pool_document())
    world.reconciled()
    world.server.store(pool_document(monitoring={"serviceMonitor": True}), "kubectl")
    world.reconciled()
    assert world.server.events()["Made"] == 'ServiceMonitor "chat" was missing and is created'


def test_an_object_whose_creation_or_restoration_is_refused_is_not_reported_as_done() -> None:
    world = World(pool_document())
    world.reconciled()
    world.server.refusing["Service"] = ApiStatusError(403, "Forbidden", "denied by a policy")
    ref = Ref("v1", "Service", "team", "chat")
    spec = {"selector": {"mine": "true"}}
    world.server.store({**deepcopy(world.server.objects[ref]), "spec": spec}, "kubectl")
    del world.server.objects[Ref("v1", "Service", "team", "chat-admin")]
    world.reconciled()
    assert world.server.events().keys() & {"Made", "DriftMended"} == set()
    assert "ApiRefused" in world.server.events()


def test_an_object_of_another_owner_that_the_cache_lacks_is_left_alone() -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "chat", "namespace": "team"},
        "spec": {"mine": True},
    }
    world = World(pool_document())
    world.server.store(theirs, "kubectl")
    world.cache.replace = lambda *_: set()  # type: ignore[method-assign]
    world.cache.update(deepcopy(world.pool))
    world.reconciled()
    assert world.server.objects[Ref("v1", "Service", "team", "chat")]["spec"] == {"mine": True}
    assert world.of("Degraded") == ("True", "NameTaken")


def test_a_pool_deleted_during_its_status_write_is_not_a_failure() -> None:
    world = World(pool_document())
    world.server.refusing["status"] = ApiStatusError(404, "NotFound", "servingpools chat not found")
    assert world.reconciled() is not None
    world.server.refusing["status"] = ApiStatusError(500, "", "etcd")
    with pytest.raises(ApiStatusError):
        world.reconciled()
    assert world.registry.get_sample_value("penstock_operator_status_writes_total") == 0


@pytest.mark.parametrize(("causes", "logged"), [((), 1), (("NamespaceTerminating",), 0)])
def test_a_refused_event_is_logged_unless_its_namespace_is_deleted(
    causes: tuple[str, ...], logged: int
) -> None:
    world = World(pool_document(replicas=-1))
    world.server.refusing["Event"] = ApiStatusError(403, "Forbidden", "no", causes)
    with capture_logs() as lines:
        world.reconciled()
    assert [one["event"] for one in lines].count("event refused") == logged
    assert world.of("Degraded") == ("True", "SpecInvalid")
    counted = dict(reason="SpecInvalid")
    assert world.registry.get_sample_value("penstock_operator_events_total", counted) == 1


def test_attainment_of_all_routers_is_in_the_status() -> None:
    world = World(pool_document())
    world.add_pod("router-0", "router")
    world.add_pod("chat-replica-0", "replica")
    world.routers.readings = [reading(all_judged=10, all_met=9)]
    world.reconciled()
    assert world.routers.asked == [(["router-0"], ADMIN_PORT)]
    assert world.pool["status"]["attainment"] == "90.0%"
    world.routers.readings = []
    world.reconciled()
    assert world.pool["status"]["attainment"] == "90.0%", "without an answer it stays"


@pytest.mark.parametrize("gateway", ["envoy", "inferencePool"])
def test_sidecars_report_demand_if_pickers_do_not_see_ends(gateway: str) -> None:
    world = World(pool_document(gateway=gateway))
    world.add_pod("router-0", "router")
    world.add_pod("chat-replica-0", "replica")
    world.reconciled()
    assert world.routers.asked == [(["chat-replica-0"], METRICS_PORT)]


def test_replicas_are_added_behind_another_gateway(clock: Clock) -> None:
    world = World(pool_document(gateway="envoy", autoscaling=SCALING))
    world.reconciled()
    world.add_pod("chat-replica-0", "replica")
    world.routers.readings = [reading("chat-replica-0")]
    world.settle()
    world.reconciled()
    clock.now_s += 10
    rejected = dict(arrived=100, admitted=40, rejected=60, hops=100)
    world.routers.readings = [reading("chat-replica-0", since_s=70.0, **rejected)]
    world.reconciled()
    assert world.pool["status"]["autoscaling"]["replicas"] > 2


def test_replicas_are_added_while_requests_find_no_replica(clock: Clock) -> None:
    world = World(pool_document(autoscaling=SCALING))
    world.reconciled()
    for name in ("chat-replica-0", "chat-replica-1"):
        world.add_pod(name, "replica")
    world.add_pod("router-0", "router")
    world.routers.readings = [reading()]
    world.settle()
    assert world.reconciled() == DECISION_PERIOD_S
    clock.now_s += 10
    world.routers.readings = [reading(since_s=70.0, arrived=100, admitted=40, rejected=60, hops=100)]
    assert world.reconciled() == 0.0, "what was decided is done at once"
    decided = world.pool["status"]["autoscaling"]
    assert decided["replicas"] > 2 == world.replicas()
    assert decided["startedFrom"] == 2
    assert decided["lastScaleTime"] == "2001-09-09T01:46:50Z"
    assert world.reconciled() == MIN_RECHECK_S
    assert world.replicas() == decided["replicas"]
    assert "Scaled" in world.server.events()


def test_replicas_that_are_not_ready_are_not_counted_as_serving(clock: Clock) -> None:
    seen = []
    for ready in (True, False):
        world = World(pool_document(autoscaling=SCALING))
        world.reconciled()
        world.add_pod("chat-replica-0", "replica", ready=ready)
        world.add_pod("router-0", "router")
        world.routers.readings = [reading()]
        world.reconciled()
        clock.now_s += 10
        world.routers.readings = [reading(since_s=70.0, arrived=100, admitted=40, rejected=60, hops=100)]
        world.reconciled()
        seen.append(world.pool["status"]["autoscaling"]["replicas"])
    assert seen[0] != seen[1]


def test_a_restarted_router_counts_from_zero() -> None:
    world = World(pool_document(autoscaling=SCALING))
    world.add_pod("router-0", "router")
    world.routers.readings = [reading(arrived=5)]
    world.reconciled()
    tally = world.reconciler.pool_states[KEY].autoscaler.tally
    assert list(tally.last_reports) == ["uid-of-router-0"]
    world.routers.readings = []
    del world.server.objects[Ref("v1", "Pod", "team", "router-0")]
    world.reconciled()
    assert tally.last_reports == {}


def test_a_learned_capacity_outlives_the_operator() -> None:
    world = World(pool_document(autoscaling=SCALING))
    world.reconciled()
    memory = world.reconciler.pool_states[KEY].autoscaler
    assert memory.memory is not None
    world.server.store(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "chat-learned", "namespace": "team"},
            "data": {"capacityRps": "2.5"},
        },
        "operator",
    )
    made = world.server.objects[Ref("v1", "ConfigMap", "team", "chat-learned")]
    owner = {"kind": "ServingPool", "name": "chat", "uid": world.pool["metadata"]["uid"], "controller": True}
    made["metadata"] |= {
        "ownerReferences": [owner],
        "labels": {"penstock.dev/pool": "chat", "app.kubernetes.io/managed-by": "penstock-operator"},
    }
    world.reconciler.pool_states.clear()
    world.reconciled()
    assert world.server.objects[Ref("v1", "ConfigMap", "team", "chat-learned")]["data"] == {
        "capacityRps": "2.5"
    }
    again = world.reconciler.pool_states[KEY].autoscaler.memory
    assert again is not None
    assert again.capacity_rps == 2.5


@pytest.mark.parametrize(
    ("by", "starts"),
    [({"by": "hpa"}, "NoneWanted"), ({"by": "keda", "prometheusUrl": "http://p:9090"}, "Asleep")],
)
def test_the_status_of_an_externally_scaled_pool_has_that_reason(by: dict[str, str], starts: str) -> None:
    least = {"minReplicas": 1 if by["by"] == "hpa" else 0}
    world = World(pool_document(replicas=0, autoscaling={**SCALING, **least, **by}))
    world.reconciled()
    world.settle()
    assert world.reconciled() == HEALTHY_PERIOD_S
    assert world.replicas() == 0
    assert world.of("Autoscaling") == ("True", "ScaledByOthers")
    assert world.of("Available")[1] == starts
    assert "autoscaling" not in world.pool["status"]


def test_a_pool_without_replicas_is_available_only_if_it_scales_from_zero() -> None:
    world = World(pool_document(replicas=0))
    world.reconciled()
    world.settle()
    world.reconciled()
    assert world.of("Available") == ("False", "NoneWanted")
    assert condition(world.pool["status"], "Autoscaling") is None
    asleep = World(pool_document(replicas=0, autoscaling={**SCALING, "minReplicas": 0}))
    asleep.reconciled()
    asleep.settle()
    asleep.reconciled()
    assert asleep.of("Available") == ("True", "Asleep")


def test_the_younger_pool_with_a_host_has_no_ingress_and_names_the_older() -> None:
    world = World(pool_document(ingress={"host": "llama.example.com"}))
    world.pool["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    older = pool_document(ingress={"host": "llama.example.com"})
    older["metadata"] = {"name": "old", "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z"}
    world.server.store(older, "kubectl")
    world.reconciled()
    assert world.of("Degraded") == ("True", "HostTaken")
    found = condition(world.pool["status"], "Degraded")
    assert found is not None
    assert "llama.example.com belongs to the older pool team/old" in found["message"]
    assert not [ref for ref in world.server.objects if ref.kind == "Ingress"]
    assert world.replicas() == 2


def test_the_objects_of_a_pool_that_cannot_run_are_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from penstock_operator.objects.render_context import UnsupportedPool
    from penstock_operator.reconcile import desired_state

    def refuse(*_: object) -> None:
        raise UnsupportedPool("spec.engine: there is no image for it")

    world = World(pool_document())
    world.reconciled()
    objects = set(world.server.objects)
    monkeypatch.setattr(desired_state, "desired", refuse)
    world.server.store(pool_document(replicas=5), "kubectl")
    world.reconciled()
    assert {ref for ref in world.server.objects if ref.kind != "Event"} == objects
    assert world.of("Degraded") == ("True", "CannotRun")
