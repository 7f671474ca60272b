"""The production processes of a pool, each on a simulated host: engines, sidecars and a router.

They are assembled as by the processes' own mains, without sockets, logs and pages of metrics.
"""

import asyncio
import contextlib
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from fault_simulation.hosts import Host
from fault_simulation.network import Network
from fault_simulation.observed_calls import ObservedChannel, Watch, skewed
from fault_simulation.plugin_reports import PluginReports
from fault_simulation.redis_peer import REDIS
from fault_simulation.scenario import KEY
from google.protobuf.message import DecodeError
from penstock_core import policies
from penstock_core.domain.replica_view import Limits
from penstock_core.domain.shared_prefixes import SharedPrefixes
from penstock_core.timing.builtin_models import kv_cache_tokens, time_model
from penstock_picker import ext_proc
from penstock_picker.ext_authz import ext_authz_app
from penstock_picker.picker import Picker
from penstock_pool import Pool
from penstock_proto.sidecar_calls import SidecarCalls
from penstock_proto.telemetry_pb2 import StepReport
from penstock_router.http.app import RouterApp
from penstock_routing.applications.api_keys import Keys
from penstock_routing.applications.rate_limits import limits_of
from penstock_routing.applications.shared_limits import SharedLimits
from penstock_routing.assembly import sharing
from penstock_routing.connections.backoff import Backoff
from penstock_routing.demand import Demand
from penstock_routing.discovery.endpoints import Source
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.replicas.shared_placements import SharedPlacements
from penstock_routing.settings import settings_of
from penstock_runtime.clock import monotonic
from penstock_runtime.grpc.server import GrpcServer
from penstock_runtime.http_connection.bounds import HttpBounds
from penstock_runtime.serving import Server
from penstock_sidecar.engine.client import EngineClient
from penstock_sidecar.engine.facts import builtin_facts
from penstock_sidecar.http.engine_socket import ApiServers
from penstock_sidecar.http.http_serving import http_app
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.replica.replica import Replica
from penstock_sidecar.requests.faults import Faults
from penstock_sidecar.requests.tickets import Tickets
from penstock_sidecar.service.grpc_server import handlers_of
from penstock_sidecar.service.replica_service import Identity, ReplicaService
from penstock_sidecar.sidecar import assemble_parts, background, bounds_of, step_reports
from penstock_sidecar.telemetry.step_reports import StepReports
from penstock_simulator.engine.drafter import Drafter
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.learned_time_model import LearnedTimeModel
from penstock_simulator.engine.measured_speculation import MeasuredSpeculation
from penstock_simulator.engine_timing.batch_shape import BatchShape
from penstock_simulator.engine_timing.ground_truth import GroundTruth, TruthKind, ground_truth
from penstock_simulator.http.gateway_requests import GatewayRequests
from penstock_simulator.main import FALLBACK_POLICY, build_api
from penstock_simulator.serving.metrics import EngineMetrics
from penstock_simulator.serving.step_loop import StepLoop
from penstock_simulator.serving.step_planner import StepPlanner
from penstock_simulator.serving.step_reports import StepReportSender
from prometheus_client import CollectorRegistry

ENGINE_OPTIONS = Namespace(max_body_bytes=1 << 20, seed=0, api_key="")


def engine_of(replica: str) -> str:
    """Return where a replica's engine listens."""
    return f"{replica}-engine:8000"


def directly_of(replica: str) -> str:
    """Return where routers reach a replica's engine: on the host of its sidecar."""
    return f"{replica}-sidecar:8000"


def calls_of(replica: str) -> str:
    """Return where an engine asks its sidecar about requests of gateways."""
    return f"{replica}-calls"


def sidecar_of(replica: str) -> str:
    """Return where a replica's sidecar listens."""
    return f"{replica}-sidecar:7000"


def http_of(replica: str) -> str:
    """Return where gateways reach a replica."""
    return f"{replica}-sidecar:7080"


@dataclass(slots=True)
class Datagrams:
    """An engine's end of its telemetry.

    shared: which of its requests hold the same blocks now. lost: reports that no process could receive.
    """

    network: Network
    address: str
    shared: Callable[[], SharedPrefixes | None]
    lost: int = 0

    def send(self, report: StepReport) -> bool:
        """Send a report."""
        data = report.SerializeToString()
        self.network.shared_prefixes[data] = self.shared()
        sent = self.network.send_datagram(self.address, data)
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
    """A simulated engine. calls: what it asks its sidecar about gateways' requests."""

    host: Host
    loop: StepLoop
    server: Server
    truth: HangingTruth
    reports: StepReportSender | PluginReports
    calls: SidecarCalls


@dataclass(slots=True)
class SidecarProcess:
    """A sidecar. http: its front for gateways. engines: connections of its engine about their requests."""

    host: Host
    replica: Replica
    metrics: Metrics
    client: EngineClient
    http: Server
    engines: ApiServers

    @property
    def of_gateways(self) -> int:
        """The number of gateways' requests that it serves."""
        return len(self.http.tasks) + sum(len(each.calls) for each in self.engines.open)


@dataclass(slots=True)
class RouterProcess:
    """A router. limits: that it shares."""

    host: Host
    app: RouterApp
    replica_set: ReplicaSet
    server: Server
    limits: SharedLimits | None


@dataclass(slots=True)
class PickerProcess:
    """A picker."""

    host: Host
    picker: Picker
    replica_set: ReplicaSet
    server: Server


def start_engine(
    network: Network,
    host: Host,
    replica: str,
    pool: Pool,
    *,
    as_plugin: bool,
    differs: Callable[[str], None],
) -> EngineProcess:
    """Start a replica's engine.

    as_plugin: whether it reports as the plug-in in vLLM does. differs: called with what the plug-in's ledger
        has otherwise than the engine.
    """

    def assemble() -> EngineProcess:
        spec, scheduling = pool.spec.engine, pool.spec.scheduling
        sink = Datagrams(network, f"{replica}-steps", lambda: state.shared_prefixes)
        reports: Any = (
            PluginReports(sink, checks_tickets=spec.direct, differs=differs)
            if as_plugin
            else StepReportSender(sink, checks_tickets=spec.direct)
        )
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
            reports=reports,
            metrics=metrics,
        )
        api = build_api(pool, loop, ENGINE_OPTIONS, lambda: network.ticket_keys.get(replica, b""))
        app = GatewayRequests(api, calls, ENGINE_OPTIONS.max_body_bytes) if spec.direct else api
        server = Server(app, HttpBounds(), None)
        return EngineProcess(host, loop, server, truth, reports, calls)

    calls = SidecarCalls(Path(calls_of(replica)), monotonic)
    engine = host.context.copy().run(assemble)
    if pool.spec.engine.direct:
        host.spawn(calls.run())
    for address in (engine_of(replica), directly_of(replica)):
        network.listen(host, address, engine.server.connection)
    host.spawn(engine.loop.run())
    return engine


def start_sidecar(
    network: Network,
    host: Host,
    replica: str,
    pool: Pool,
    *,
    outbox_bytes: int,
    differs: Callable[[str], None],
    skew: int = 0,
) -> SidecarProcess:
    """Start a replica's sidecar.

    outbox_bytes: that it holds for a router that reads slowly. differs: called with what it takes for shared
        otherwise than its engine when that made the report.
    """

    def assemble() -> tuple[SidecarProcess, Any]:
        bounds = replace(bounds_of(pool), outbox_bytes=outbox_bytes)
        metrics = Metrics(CollectorRegistry())
        client = EngineClient(f"http://{engine_of(replica)}", bounds, pool.spec.model.name, "")
        tickets = partial(_tickets, network, replica, pool)
        parts = assemble_parts(pool, builtin_facts(pool), client, tickets, metrics=metrics, bounds=bounds)
        served = parts.replica
        ticks = [served.tick]
        if parts.gate is None:
            reports = step_reports(parts, metrics, "steps")
            network.receive_datagrams(host, f"{replica}-steps", _receiver(reports, network, differs))
            ticks.append(lambda: reports.check_silence(served.state.engine_ready))
        app = http_app(
            replica,
            pool,
            served,
            parts.estimates,
            demand=Demand(pool.tiers()),
            registry=CollectorRegistry(),
            faults=Faults(metrics.faults),
        )
        engines = ApiServers(app.at_engine)
        identity = Identity(
            replica,
            pool.spec.model.name,
            pool.spec.scheduling.policy,
            http_port=lambda: _port(directly_of(replica) if engines else http_of(replica)),
            engine_port=_port(directly_of(replica)) if pool.spec.engine.direct else 0,
        )
        service = ReplicaService(
            identity, served, parts.mirror, parts.estimates, metrics, detokenize=client.detokenize
        )
        calls = GrpcServer(skewed(handlers_of(service), skew), network.weather.grpc_bounds)
        network.listen(host, sidecar_of(replica), calls.connection)
        network.listen(host, calls_of(replica), engines.connection)
        http = Server(app, HttpBounds(), None)
        network.listen(host, http_of(replica), http.connection)
        beside = background(
            parts.watch, served, client, parts.gate, bounds=bounds, ticks=ticks, faults=Faults(metrics.faults)
        )
        return SidecarProcess(host, served, metrics, client, http, engines), beside

    process, beside = host.context.copy().run(assemble)

    async def stay() -> None:
        async with beside:
            await asyncio.Event().wait()

    host.spawn(stay())
    return process


def _tickets(network: Network, replica: str, pool: Pool, mirror: ReplicaMirror) -> Tickets:
    """Return what seals tickets, with a new key on the replica's disk."""
    if not pool.spec.engine.direct:
        return Tickets()
    key = network.ticket_keys[replica] = network.random.randbytes(32)
    return Tickets(key, lambda: mirror.live and mirror.checks_tickets)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _receiver(
    reports: StepReports, network: Network, differs: Callable[[str], None]
) -> Callable[[bytes], None]:
    def receive(datagram: bytes) -> None:
        with contextlib.suppress(DecodeError):
            report = StepReport.FromString(datagram)
            reports.receive([report])
            mirrored, continuity = reports._mirror._shared, reports._continuity
            last = continuity.instance, continuity.sequence
            applied = last == (
                report.engine_instance,
                report.sequence,
            ) and reports._complete_reports.restored(report)
            truth = network.shared_prefixes.get(datagram) if applied else None
            if truth is None or mirrored is None or not mirrored.ids:
                return  # all requests are counted whole
            if _pairs(mirrored) != _pairs(truth):
                differs(f"it takes {mirrored} for shared where its engine has {truth}")

    return receive


def _pairs(shared: SharedPrefixes) -> list[tuple[str, int]]:
    return list(zip(*shared, strict=True))


def start_router(
    network: Network,
    host: Host,
    source: Source,
    pool: Pool,
    *,
    random: Random,
    watch: Watch,
    changed: Callable[[], None],
    skew: int = 0,
) -> RouterProcess:
    """Start a router.

    watch: of its calls' messages. changed: called when the state of a replica has changed.
    """
    applications = pool.spec.applications
    keys = Keys(applications, dict.fromkeys([KEY], applications[0]) if applications else {})
    placements = limits = None
    if applications:
        placements = SharedPlacements(_redis_url, "placements", Backoff(random))
        limits = SharedLimits(_redis_url, "limits", limits_of(applications), Backoff(random))
    link = _LinkMaker(network, watch, skew, random, changed, placements)
    replica_set = host.context.copy().run(ReplicaSet, link, random)

    def assemble() -> RouterProcess:
        app = RouterApp(pool, settings_of(pool), keys, replica_set, shared_limits=limits)
        return RouterProcess(host, app, replica_set, Server(app, HttpBounds(), None), limits)

    router = host.context.copy().run(assemble)
    for part in (*sharing(placements, limits, replica_set, router.app.metrics), replica_set.follow(source)):
        host.spawn(part)
    network.listen(host, address_of(host), router.server.connection)
    return router


def start_picker(
    network: Network,
    host: Host,
    source: Source,
    pool: Pool,
    *,
    random: Random,
    changed: Callable[[], None],
) -> PickerProcess:
    """Start a picker, with both of its fronts."""
    link = _LinkMaker(network, lambda _: lambda _: None, 0, random, changed)
    replica_set = host.context.copy().run(ReplicaSet, link, random)

    def assemble() -> PickerProcess:
        picker = Picker(pool, settings_of(pool), Keys(pool.spec.applications, {}), replica_set)
        server = Server(ext_authz_app(picker), HttpBounds(), None)
        calls = GrpcServer(
            ext_proc.handlers_of(picker, lambda: replica_set.ready), ext_proc.bounds_of(picker)
        )
        network.listen(host, address_of(host), server.connection)
        network.listen(host, ext_proc_of(host), calls.connection)
        return PickerProcess(host, picker, replica_set, server)

    picker = host.context.copy().run(assemble)
    host.spawn(replica_set.follow(source))
    return picker


def address_of(host: Host) -> str:
    """Return where a router, picker or gateway listens."""
    return f"{host.name}:8080"


def ext_proc_of(host: Host) -> str:
    """Return where a picker listens for `ext_proc`."""
    return f"{host.name}:9002"


def _redis_url() -> str:
    return f"redis://{REDIS}/0"


@dataclass(slots=True)
class _LinkMaker:
    """Makes a router's links. changed: called with their replica set when the state of one has changed."""

    network: Network
    watch: Watch
    skew: int
    random: Random
    changed: Callable[[], None]
    placements: SharedPlacements | None = None

    def __call__(self, name: str, address: str, links_changed: Callable[[], None]) -> ReplicaLink:
        def connect(address: str) -> Any:
            return ObservedChannel(address, self.network.weather.grpc_bounds, self.watch, self.skew)

        def changed() -> None:
            links_changed()
            self.changed()

        return ReplicaLink(
            name,
            address,
            connect,
            Backoff(self.random),
            changed=changed,
            placed=(lambda replica, tokens: None) if self.placements is None else self.placements.placed,
            draw=self.random.random,
        )
