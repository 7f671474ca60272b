"""The production processes of a pool, each on a simulated host: engines, sidecars and a router.

What is assembled here is what the processes' own mains assemble, without sockets, logs and pages of metrics.
"""

import asyncio
import contextlib
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from fault_simulation.grpc_calls import Channel, Servicer, Watch
from fault_simulation.hosts import Host
from fault_simulation.network import Network
from google.protobuf.message import DecodeError
from penstock_core import policies
from penstock_core.domain.replica_view import Limits
from penstock_core.timing.builtin_models import kv_cache_tokens, time_model
from penstock_pool import Pool, parse_pool
from penstock_proto import replica_pb2 as wire
from penstock_proto.telemetry_pb2 import StepReport
from penstock_router.http.app import RouterApp
from penstock_routing.applications.api_keys import Keys
from penstock_routing.connections.backoff import Backoff
from penstock_routing.discovery.endpoints import Fixed
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.settings import settings_of
from penstock_runtime.http_protocol import HttpBounds
from penstock_runtime.serving import Server
from penstock_sidecar.engine.client import EngineClient
from penstock_sidecar.engine.facts import named
from penstock_sidecar.engine.watch import EngineWatch
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.replica.replica import Replica
from penstock_sidecar.requests.faults import Faults
from penstock_sidecar.requests.learned import Learned
from penstock_sidecar.service.health import Health
from penstock_sidecar.service.replica_service import Identity, ReplicaService
from penstock_sidecar.sidecar import background, bounds_of, gate_of, mirror_of, serving_of
from penstock_sidecar.telemetry.step_reports import StepReports
from penstock_simulator.engine.drafter import Drafter
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.learned_time_model import LearnedTimeModel
from penstock_simulator.engine.measured_speculation import MeasuredSpeculation
from penstock_simulator.engine_timing.batch_shape import BatchShape
from penstock_simulator.engine_timing.ground_truth import GroundTruth, TruthKind, ground_truth
from penstock_simulator.main import FALLBACK_POLICY, build_api
from penstock_simulator.serving.metrics import EngineMetrics
from penstock_simulator.serving.step_loop import StepLoop
from penstock_simulator.serving.step_planner import StepPlanner
from penstock_simulator.serving.step_reports import StepReportSender
from prometheus_client import CollectorRegistry

ROUTER = "router:8080"
TIERS = [
    {"name": "chat", "slo": {"ttft": "2s", "tpot": "100ms"}},
    {"name": "batch", "bestEffort": True},
]
FORMATS = {
    "Session": (wire.RouterFrame.FromString, wire.ReplicaFrame.SerializeToString),
    "Describe": (wire.DescribeRequest.FromString, wire.DescribeReply.SerializeToString),
}
ENGINE_OPTIONS = Namespace(max_body_bytes=1 << 20, seed=0, api_key="")


@cache
def pool_of(policy: str, max_moves: int, kv_tokens: int) -> Pool:
    """Return a small pool of simulated engines."""
    document = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": "faults"},
        "spec": {
            "model": {"name": "m"},
            "engine": {
                "type": "simulated",
                "timeModel": "llama-3-8b-a100",
                "maxModelLen": 8192,
                "kvCacheTokens": kv_tokens,
                "silenceTimeout": "5s",
            },
            "scheduling": {"policy": policy},
            "tiers": TIERS,
            "routing": {"backup": "best-effort", "maxMoves": max_moves},
        },
    }
    return parse_pool(document, "pool.yaml")


def engine_of(replica: str) -> str:
    """Return where a replica's engine listens."""
    return f"{replica}-engine:8000"


def sidecar_of(replica: str) -> str:
    """Return where a replica's sidecar listens."""
    return f"{replica}-sidecar:7000"


@dataclass(slots=True)
class Datagrams:
    """An engine's end of its telemetry. lost: reports that nobody could receive."""

    network: Network
    address: str
    lost: int = 0

    def send(self, report: StepReport) -> bool:
        """Send a report."""
        sent = self.network.send_datagram(self.address, report.SerializeToString())
        self.lost += not sent
        return sent


@dataclass(slots=True)
class HangingTruth:
    """Timing of an engine that may hang: an iteration that begins meanwhile ends when it goes on."""

    truth: GroundTruth
    until_s: float = 0.0

    def seconds(self, shape: BatchShape, at_s: float) -> float:
        """Return the duration of an iteration."""
        return self.truth.seconds(shape, at_s) + max(self.until_s - asyncio.get_running_loop().time(), 0.0)


@dataclass(slots=True)
class EngineProcess:
    """A simulated engine."""

    host: Host
    loop: StepLoop
    server: Server
    truth: HangingTruth


@dataclass(slots=True)
class SidecarProcess:
    """A sidecar."""

    host: Host
    replica: Replica
    metrics: Metrics
    client: EngineClient


@dataclass(slots=True)
class RouterProcess:
    """A router."""

    host: Host
    app: RouterApp
    replica_set: ReplicaSet
    server: Server


def start_engine(network: Network, host: Host, replica: str, pool: Pool) -> EngineProcess:
    """Start a replica's engine."""

    def assemble() -> EngineProcess:
        spec, scheduling = pool.spec.engine, pool.spec.scheduling
        model = time_model(spec.time_model)
        state = EngineState(
            spec.kv_cache_tokens or kv_cache_tokens(spec.time_model),
            Limits(scheduling.max_batch_tokens, scheduling.max_running),
            spec.block_tokens,
            Drafter(0.0, 0).accepted,
            prefix_caching=spec.caches_prefixes,
        )
        metrics = EngineMetrics(pool.spec.model.name, state)
        policy = policies.build(scheduling.policy, scheduling.knobs())
        truth = HangingTruth(ground_truth(spec.time_model, TruthKind.EXACT, 0))
        loop = StepLoop(
            state=state,
            planner=StepPlanner(policy, policies.build(FALLBACK_POLICY), state, metrics),
            time_model=LearnedTimeModel(model),
            speculation=MeasuredSpeculation(None),
            truth=truth,
            reports=StepReportSender(Datagrams(network, f"{replica}-steps")),
            metrics=metrics,
        )
        server = Server(build_api(pool, loop, ENGINE_OPTIONS), HttpBounds(), None)
        return EngineProcess(host, loop, server, truth)

    engine = host.context.copy().run(assemble)
    network.listen(host, engine_of(replica), engine.server.connection)
    host.spawn(engine.loop.run())
    return engine


def start_sidecar(
    network: Network, host: Host, replica: str, pool: Pool, *, newer: bool = False
) -> SidecarProcess:
    """Start a replica's sidecar."""

    def assemble() -> tuple[SidecarProcess, Any]:
        bounds, metrics = bounds_of(pool), Metrics(CollectorRegistry())
        client = EngineClient(f"http://{engine_of(replica)}", bounds, pool.spec.model.name, "")
        facts = named(pool)
        learned, serves = Learned(facts.model), serving_of(pool)
        mirror = mirror_of(pool, facts.kv, learned, bounds)
        gate = gate_of(serves, mirror, learned, bounds, metrics)
        watch, health = EngineWatch(client.probe, heard_s=lambda: mirror.heard_s, bounds=bounds), Health()
        served = Replica(
            serves,
            mirror,
            learned,
            client,
            metrics=metrics,
            bounds=bounds,
            gate=gate,
            engine_lost=watch.suspect,
            serves_changed=health.tell,
        )
        reports = StepReports(mirror, learned, metrics, served.accepted.prompt_known, "steps")

        def receive(datagram: bytes) -> None:
            with contextlib.suppress(DecodeError):
                reports.receive([StepReport.FromString(datagram)])

        network.receive_datagrams(host, f"{replica}-steps", receive)
        identity = Identity(replica, pool.spec.model.name, pool.spec.scheduling.policy)
        service = ReplicaService(identity, served, mirror, learned, metrics)
        network.listen(host, sidecar_of(replica), Servicer(service, FORMATS, newer=newer))
        ticks = [served.tick, lambda: reports.check_silence(served.state.engine_ready)]
        beside = background(
            watch, served, client, gate, bounds=bounds, ticks=ticks, faults=Faults(metrics.faults)
        )
        return SidecarProcess(host, served, metrics, client), beside

    process, beside = host.context.copy().run(assemble)

    async def stay() -> None:
        async with beside:
            await asyncio.Event().wait()

    host.spawn(stay())
    return process


def start_router(
    network: Network,
    host: Host,
    replicas: Sequence[str],
    pool: Pool,
    *,
    random: Random,
    watch: Watch,
    changed: Callable[[ReplicaSet], None],
    newer: bool = False,
) -> RouterProcess:
    """Start a router in front of these replicas.

    watch: of its calls' messages. changed: called when the state of a replica has changed.
    """

    def connect(address: str) -> Any:
        return Channel(network, address, watch, newer=newer)

    def make_link(name: str, address: str, links_changed: Callable[[], None]) -> ReplicaLink:
        def both() -> None:
            links_changed()
            changed(replica_set)

        return ReplicaLink(name, address, connect, Backoff(random), changed=both, draw=random.random)

    replica_set = host.context.copy().run(ReplicaSet, make_link, random)

    def assemble() -> RouterProcess:
        app = RouterApp(pool, settings_of(pool), Keys(pool.spec.applications, {}), replica_set)
        return RouterProcess(host, app, replica_set, Server(app, HttpBounds(), None))

    router = host.context.copy().run(assemble)
    host.spawn(router.replica_set.follow(Fixed({name: sidecar_of(name) for name in replicas})))
    network.listen(host, ROUTER, router.server.connection)
    return router
