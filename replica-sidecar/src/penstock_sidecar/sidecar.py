"""Assembly of one sidecar."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import structlog
from penstock_core.domain.engine_fields import engine_calls_socket, measured_model_file, ticket_key_file
from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.policies import build
from penstock_core.routing.orders import WITHOUT_CACHES
from penstock_core.timing.speculation import Speculation
from penstock_pool import Pool
from penstock_proto.ticket_key import write_new_key
from penstock_routing.demand import Demand
from penstock_runtime.client_tls import Contexts, client_contexts
from penstock_runtime.engine.connections import PORTS
from penstock_runtime.pages import PAGES_BOUNDS, PAGES_DRAIN_S
from penstock_runtime.serving import Server, StartError, address_of, listen, serving
from prometheus_client import CollectorRegistry

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.compiler_memory import release_compiler_memory
from penstock_sidecar.engine.client import EngineClient
from penstock_sidecar.engine.facts import Facts
from penstock_sidecar.engine.facts_at_start import facts_of
from penstock_sidecar.engine.watch import EngineWatch
from penstock_sidecar.http.engine_socket import engine_connections
from penstock_sidecar.http.http_serving import http_app, http_listener, http_serving
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.holding_mirror import HoldingMirror
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.options import Options
from penstock_sidecar.pages import inspection_app
from penstock_sidecar.release.gate import ReleaseGate
from penstock_sidecar.replica.replica import Replica
from penstock_sidecar.replica.serving import Serving
from penstock_sidecar.requests.estimates import Estimates
from penstock_sidecar.requests.faults import Faults
from penstock_sidecar.requests.tickets import Tickets
from penstock_sidecar.service.grpc_server import service_serving
from penstock_sidecar.service.health import Health
from penstock_sidecar.service.replica_service import Identity, ReplicaService
from penstock_sidecar.telemetry.socket import TelemetrySocket
from penstock_sidecar.telemetry.step_reports import StepReports
from penstock_sidecar.warm_up import warm_up

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one replica, before it serves."""

    replica: Replica
    mirror: ReplicaMirror
    estimates: Estimates
    gate: ReleaseGate | None
    watch: EngineWatch
    health: Health


async def run_sidecar(options: Options, pool: Pool, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then drain. Raises StartError if the sidecar cannot start."""
    bounds = bounds_of(pool)
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    replicas: list[Replica] = []  # empty until the engine is known
    async with contextlib.AsyncExitStack() as stack:
        demand = None if options.http is None else Demand(pool.tiers())
        metrics_address = await stack.enter_async_context(_serve_pages(options, registry, replicas, demand))
        tls = engine_tls(options)
        client = EngineClient(options.engine, bounds, pool.spec.model.name, options.engine_key, tls)
        engine = await stack.enter_async_context(client)
        key, model_file = options.engine_key, _model_file(options)
        facts = await facts_of(pool, options.engine, engine.probe, stop, model_file, api_key=key, tls=tls)
        if facts is None:
            return
        tickets = partial(tickets_of, pool, options)
        parts = assemble_parts(pool, facts, engine, tickets, metrics=metrics, bounds=bounds)
        release_compiler_memory()
        replicas.append(parts.replica)
        ticks = [parts.replica.tick, *stack.enter_context(_receiving(options.telemetry, parts, metrics))]
        serving_http = _serve_http(options, pool, parts, demand, registry=registry, metrics=metrics)
        http = await stack.enter_async_context(serving_http)
        service = ReplicaService(
            identity_of(options, pool, metrics_address, http),
            parts.replica,
            parts.mirror,
            parts.estimates,
            metrics,
            detokenize=engine.detokenize,
        )
        serving_routers = service_serving(service, parts.health, options.listen, options.tls)
        address = await stack.enter_async_context(serving_routers)
        await stack.enter_async_context(
            background(
                parts.watch,
                parts.replica,
                engine,
                parts.gate,
                bounds=bounds,
                ticks=ticks,
                faults=Faults(metrics.faults),
            )
        )
        _log_ready(options, str(address), metrics_address, None if http is None else http.listener)
        await stop.wait()
        drain_s = pool.spec.scheduling.drain_timeout_s if options.drain_s is None else options.drain_s
        await stop_serving(parts.replica, None if http is None else http.server, drain_s)


def assemble_parts(
    pool: Pool,
    facts: Facts,
    engine: EngineClient,
    tickets: Callable[[ReplicaMirror], Tickets],
    *,
    metrics: Metrics,
    bounds: Bounds,
) -> Parts:
    """Return the parts of a replica, after a warm-up of its policy. Raises the errors of `tickets`."""
    estimates = Estimates(facts.model, pool.spec.scheduling.delivery_allowance_s, facts.overhead_s)
    metrics.delivery.set(estimates.delivery_s)
    mirror, serves = mirror_of(pool, facts.kv, estimates, bounds), serving_of(pool)
    warm_up(serves.policy, mirror.view(0.0, estimates.model), serves.tiers.values())
    gate = gate_of(serves, mirror, estimates, bounds, metrics)
    watch, health = (
        EngineWatch(engine.probe, last_received_s=lambda: mirror.last_received_s, bounds=bounds),
        Health(),
    )
    replica = Replica(
        serves,
        mirror,
        estimates,
        engine,
        metrics=metrics,
        bounds=bounds,
        gate=gate,
        tickets=tickets(mirror),
        engine_lost=watch.suspect,
        serves_changed=health.set_serving,
    )
    return Parts(replica, mirror, estimates, gate, watch, health)


class _Http(NamedTuple):
    """The HTTP interface of a replica that serves it.

    engine_port: port of the engine for gateways; 0 if they may not use it. engines: its API servers that ask
        here about gateways' requests.
    """

    server: Server
    listener: socket.socket
    engine_port: int
    engines: Collection[object]

    def port(self) -> int:
        """Return the port for gateways: the engine's while its API servers ask here."""
        return self.engine_port if self.engines else self.listener.getsockname()[1]


@contextlib.asynccontextmanager
async def _serve_http(
    options: Options,
    pool: Pool,
    parts: Parts,
    demand: Demand | None,
    *,
    registry: CollectorRegistry,
    metrics: Metrics,
) -> AsyncIterator[_Http | None]:
    """Serve gateways within the block, if the flags name a port for them."""
    listener = http_listener(options.http)
    if listener is None or demand is None:
        yield None
        return
    app = http_app(
        options.name,
        pool,
        parts.replica,
        parts.estimates,
        demand=demand,
        registry=registry,
        faults=Faults(metrics.faults),
    )
    async with http_serving(app, listener, pool, options.http_tls) as server:
        port = engine_port_for_gateways(options, pool)
        if not port or options.telemetry is None:
            yield _Http(server, listener, 0, ())
            return
        socket_path = Path(engine_calls_socket(str(options.telemetry)))
        async with engine_connections(socket_path, app.at_engine) as engines:
            yield _Http(server, listener, port, engines.open)


@contextlib.contextmanager
def _receiving(path: Path | None, parts: Parts, metrics: Metrics) -> Iterator[list[Callable[[], None]]]:
    """Receive step reports within the block, if there is a socket. Yields functions to call every tick."""
    if path is None:
        yield []
        return
    reports = step_reports(parts, metrics, str(path))
    telemetry = TelemetrySocket(path, reports.receive)
    with contextlib.closing(telemetry):
        yield [telemetry.renew, lambda: reports.check_silence(parts.replica.state.engine_ready)]


def step_reports(parts: Parts, metrics: Metrics, source: str) -> StepReports:
    """Return the receiver of the engine's step reports. source: for logs."""
    return StepReports(
        parts.mirror,
        parts.estimates,
        metrics,
        parts.replica.accepted.prompt_known,
        source,
        prefixes_changed=parts.replica.report_prefixes,
        applied=parts.replica.send_progress,
    )


def _log_ready(
    options: Options, address: str, metrics_address: str | None, http: socket.socket | None
) -> None:
    log.info(
        "ready",
        name=options.name,
        address=address,
        engine=options.engine,
        metrics=metrics_address or "none",
        http="none" if http is None else address_of(http),
    )


async def stop_serving(replica: Replica, http: Server | None, drain_s: float) -> None:
    """Drain a replica for up to `drain_s`, then end its sessions and remaining requests."""
    replica.state.stopping = True
    if http is not None:
        http.close_after_responses()
    unfinished = await replica.drain(drain_s)
    log.info("stopped", unfinished=unfinished)
    await replica.close()


def _model_file(options: Options) -> Path | None:
    return None if options.telemetry is None else Path(measured_model_file(str(options.telemetry)))


def identity_of(options: Options, pool: Pool, metrics_address: str | None, http: _Http | None) -> Identity:
    """Return the description of this replica."""
    metrics_url = "" if metrics_address is None else f"http://{metrics_address}/metrics"
    http_port = int if http is None else http.port
    policy, direct = pool.spec.scheduling.policy, pool.spec.engine.direct
    tickets = direct and options.telemetry is not None
    plain, tls = (root_port(options.engine, scheme) if tickets else 0 for scheme in ("http", "https"))
    return Identity(options.name, pool.spec.model.name, policy, metrics_url, http_port, plain, tls)


def engine_port_for_gateways(options: Options, pool: Pool) -> int:
    """Return the engine's port if gateways may send requests to it; else 0.

    They use one protocol for all ports, so the engine serves TLS if and only if this sidecar does.
    """
    if not pool.spec.engine.direct or options.telemetry is None:
        return 0
    return root_port(options.engine, "http" if options.http_tls is None else "https")


def root_port(engine: str, scheme: str) -> int:
    """Return the port of an engine's URL if it has this scheme and no path; else 0."""
    parts = urlsplit(engine)
    return (parts.port or PORTS[scheme]) if parts.scheme == scheme and not parts.path.strip("/") else 0


def engine_tls(options: Options) -> Contexts | None:
    """Return the TLS of connections to the engine; None without flags for it. Raises StartError."""
    tls = options.engine_tls
    try:
        return None if tls is None else client_contexts(tls.ca, tls.cert, tls.key, tls.server_name)
    except OSError as error:
        raise StartError(f"TLS to the engine: {error.filename}: {error.strerror}") from None


def bounds_of(pool: Pool) -> Bounds:
    """Return the sidecar's bounds, including those that the pool sets."""
    scheduling, engine = pool.spec.scheduling, pool.spec.engine
    return replace(
        Bounds(),
        requests=scheduling.max_running + scheduling.max_waiting,
        best_effort=scheduling.max_waiting,
        connect_s=engine.connect_timeout_s,
        silence_s=engine.silence_timeout_s,
        fresh_snapshots=pool.spec.routing_order != WITHOUT_CACHES,
    )


def serving_of(pool: Pool) -> Serving:
    """Return the model that this pool's replicas serve, and its settings."""
    engine, scheduling = pool.spec.engine, pool.spec.scheduling
    return Serving(
        policy=build(scheduling.policy, scheduling.knobs()),
        tiers=pool.tiers(),
        reads_fields=engine.type != "openai",
        max_model_len=engine.max_model_len,
        max_sequences=pool.spec.router.max_sequences_per_request,
    )


def mirror_of(pool: Pool, kv: KvCache, estimates: Estimates, bounds: Bounds) -> ReplicaMirror:
    """Return an empty mirror, with the pool's KV cache and drafter until the engine reports its own."""
    limits = Limits(pool.spec.scheduling.max_batch_tokens, pool.spec.scheduling.max_running)
    drafter = pool.spec.engine.speculation
    prior = Speculation(drafter.max_tokens, drafter.acceptance) if drafter else None
    if pool.spec.engine.type == "openai":
        mirror = HoldingMirror(kv, limits, estimates.longer_output_tokens, prior)
        mirror.set_prefix_caching(possible=pool.spec.engine.prefix_caching is not False)
        return mirror
    return ReplicaMirror(kv, limits, estimates.longer_output_tokens, bounds.telemetry_silence_s, prior)


def tickets_of(pool: Pool, options: Options, mirror: ReplicaMirror) -> Tickets:
    """Return the tickets of this replica, with a new key in a file beside the telemetry socket.

    Without direct answers in the pool, no tickets are sealed. Raises StartError.
    """
    if not pool.spec.engine.direct or options.telemetry is None:
        return Tickets()
    path = Path(ticket_key_file(str(options.telemetry)))
    try:
        return Tickets(write_new_key(path), lambda: mirror.live and mirror.checks_tickets)
    except OSError as error:
        raise StartError(f"cannot write the ticket key to {path}: {error.strerror}") from None


def gate_of(
    serves: Serving, mirror: ReplicaMirror, estimates: Estimates, bounds: Bounds, metrics: Metrics
) -> ReleaseGate | None:
    """Return the gate before an engine with its own scheduler; None for other engines."""
    if not isinstance(mirror, HoldingMirror):
        return None
    return ReleaseGate(serves.policy, mirror, estimates, bounds=bounds, metrics=metrics)


@contextlib.asynccontextmanager
async def _serve_pages(
    options: Options, registry: CollectorRegistry, replicas: Sequence[Replica], demand: Demand | None
) -> AsyncIterator[str | None]:
    """Serve the pages within the block. replicas: this replica; empty until it is assembled."""
    if options.metrics is None:
        yield None
        return
    listener = listen(options.metrics.host, options.metrics.port)
    app = inspection_app(options.name, registry, replicas, demand)
    async with serving(app, listener, PAGES_DRAIN_S, PAGES_BOUNDS):
        yield address_of(listener)


@contextlib.asynccontextmanager
async def background(
    watch: EngineWatch,
    replica: Replica,
    engine: EngineClient,
    gate: ReleaseGate | None,
    *,
    bounds: Bounds,
    ticks: Sequence[Callable[[], None]],
    faults: Faults,
) -> AsyncIterator[None]:
    """Run probes, ticks and load queries within the block. A failure in them ends the sidecar.

    ticks: functions that are called about every second.
    """
    async with asyncio.TaskGroup() as tasks:
        ticking = _ticking(ticks, bounds.snapshot_s, faults)
        running = [
            tasks.create_task(watch.run(replica.engine_up, replica.engine_down)),
            tasks.create_task(ticking),
        ]
        if gate is not None:
            running.append(tasks.create_task(_load_queries(engine, gate, bounds.probe_s, faults)))
        yield
        for task in running:
            task.cancel()


async def _load_queries(engine: EngineClient, gate: ReleaseGate, every_s: float, faults: Faults) -> None:
    while True:
        with faults.within("load"):
            await gate.refresh_load(engine.load)
        await asyncio.sleep(every_s)


async def _ticking(ticks: Sequence[Callable[[], None]], every_s: float, faults: Faults) -> None:
    while True:
        for tick in ticks:
            with faults.within("tick"):
                tick()
        await asyncio.sleep(every_s)
