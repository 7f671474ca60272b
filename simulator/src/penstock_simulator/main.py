"""`penstock-engine`: a simulated engine that serves OpenAI's API with the timing of a GPU."""

import argparse
import asyncio
import contextlib
import os
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import structlog
from penstock_core import policies
from penstock_core.domain.engine_fields import engine_calls_socket, ticket_key_file
from penstock_core.domain.replica_view import Limits
from penstock_core.domain.ticket import TicketCheck
from penstock_core.timing.builtin_models import kv_cache_tokens, time_model
from penstock_core.timing.speculation import Speculation
from penstock_pool import Pool, PoolError, load_pool
from penstock_proto.report_socket import ReportSocket
from penstock_proto.sidecar_calls import SidecarCalls
from penstock_proto.ticket_key import TicketKeyFile
from penstock_runtime.engine_key import VARIABLE, engine_key
from penstock_runtime.flags import port
from penstock_runtime.http_request import App
from penstock_runtime.logs import configure_logs
from penstock_runtime.serving import StartError, address_of, listen, run_process, serving
from penstock_runtime.tls import server_context

from penstock_simulator.engine.drafter import Drafter
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.learned_time_model import LearnedTimeModel
from penstock_simulator.engine.measured_speculation import MeasuredSpeculation
from penstock_simulator.engine_timing.ground_truth import GroundTruth, TruthKind, ground_truth
from penstock_simulator.http.api import EngineApi
from penstock_simulator.http.completions import Completions
from penstock_simulator.http.gateway_requests import GatewayRequests
from penstock_simulator.serving.metrics import EngineMetrics
from penstock_simulator.serving.step_loop import StepLoop
from penstock_simulator.serving.step_planner import StepPlanner
from penstock_simulator.serving.step_reports import StepReportSender
from penstock_simulator.warm_up import warm_up

log = structlog.get_logger()

FALLBACK_POLICY = "vllm"


def main(arguments: list[str] | None = None) -> int:
    """Run the process. Exit codes: 0 stopped, 1 cannot start, 2 invalid pool file or flags."""
    options = parser().parse_args(arguments)
    configure_logs("penstock-engine", options.log_level)
    try:
        pool = load_pool(options.file)
    except PoolError as error:
        print(*error.lines, sep="\n", file=sys.stderr)
        return 2
    if pool.spec.engine.type != "simulated":
        print(
            f'{options.file}: spec.engine.type: "{pool.spec.engine.type}"; penstock-engine runs only '
            "`simulated`",
            file=sys.stderr,
        )
        return 2
    truth = ground_truth(pool.spec.engine.time_model, TruthKind(options.truth), options.seed)
    return run_process(lambda stop: serve_engine(pool, truth, options, stop))


async def serve_engine(
    pool: Pool, truth: GroundTruth, options: argparse.Namespace, stop: asyncio.Event
) -> None:
    """Serve until `stop` is set, then drain."""
    tls = served_tls(options)
    listener = listen(options.host, options.port)
    loop = build_loop(pool, truth, options)
    stepping = asyncio.create_task(loop.run())
    try:
        api = build_api(pool, loop, options, _ticket_key(options))
        async with (
            _behind_gateways(api, options) as app,
            serving(app, listener, options.drain_s, tls=tls),
        ):
            log.info("ready", process="penstock-engine", address=address_of(listener))
            await _wait_for_stop(stepping, stop)
    finally:
        stepping.cancel()


def served_tls(options: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the TLS context that vLLM's flags request; None without a certificate. Raises StartError."""
    cert, key, required = (
        options.ssl_certfile,
        options.ssl_keyfile,
        options.ssl_cert_reqs == ssl.CERT_REQUIRED,
    )
    if bool(cert) != bool(key):
        raise StartError("--ssl-certfile and --ssl-keyfile belong together")
    if required and not (cert and options.ssl_ca_certs):
        raise StartError("--ssl-cert-reqs 2 needs --ssl-ca-certs, --ssl-certfile and --ssl-keyfile")
    if not cert:
        return None
    try:
        return server_context(cert, key, options.ssl_ca_certs if required else None)
    except OSError as error:
        raise StartError(f"{error.filename}: {error.strerror}") from None


async def _wait_for_stop(stepping: asyncio.Task[None], stop: asyncio.Event) -> None:
    """Wait for `stop`. Raises the step loop's exception if it ends first."""
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({stepping, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if stepping.done():
        stepping.result()


def build_loop(pool: Pool, truth: GroundTruth, options: argparse.Namespace) -> StepLoop:
    """Return the engine that a pool describes, with this ground truth."""
    engine, scheduling, speculation = pool.spec.engine, pool.spec.scheduling, _speculation(pool)
    model = time_model(engine.time_model)
    state = EngineState(
        engine.kv_cache_tokens or kv_cache_tokens(engine.time_model),
        Limits(scheduling.max_batch_tokens, scheduling.max_running),
        engine.block_tokens,
        Drafter(speculation.acceptance if speculation else 0.0, options.seed).accepted,
        prefix_caching=engine.caches_prefixes,
    )
    metrics = EngineMetrics(pool.spec.model.name, state)
    policy = policies.build(scheduling.policy, scheduling.knobs())
    warm_up(policy, state.limits, model, speculation)
    return StepLoop(
        state=state,
        planner=StepPlanner(policy, policies.build(FALLBACK_POLICY), state, metrics),
        time_model=LearnedTimeModel(model),
        speculation=MeasuredSpeculation(speculation),
        truth=truth,
        reports=StepReportSender(
            ReportSocket(options.telemetry, log.warning) if options.telemetry else None,
            checks_tickets=engine.direct,
        ),
        metrics=metrics,
    )


def _speculation(pool: Pool) -> Speculation | None:
    spec = pool.spec.engine.speculation
    return Speculation(spec.max_tokens, spec.acceptance) if spec else None


def build_api(
    pool: Pool, loop: StepLoop, options: argparse.Namespace, ticket_key: Callable[[], bytes] = bytes
) -> EngineApi:
    """Return its HTTP API, whose longest context is bounded by KV memory. ticket_key: the sidecar's."""
    kv_tokens = loop.state.total_blocks * loop.state.block_tokens
    return EngineApi(
        Completions(
            loop=loop,
            model=pool.spec.model.name,
            max_model_len=min(pool.spec.engine.max_model_len, kv_tokens),
            max_body_bytes=options.max_body_bytes,
            seed=options.seed,
            tickets=TicketCheck() if pool.spec.engine.direct else None,
            ticket_key=ticket_key,
        ),
        options.api_key,
    )


@contextlib.asynccontextmanager
async def _behind_gateways(api: EngineApi, options: argparse.Namespace) -> AsyncIterator[App]:
    """Yield the application: with `--gateway-requests` it asks the sidecar about each request."""
    if not options.gateway_requests:
        yield api
        return
    if options.telemetry is None:
        raise StartError("--gateway-requests: needs --telemetry: the sidecar's socket is beside that one")
    calls = SidecarCalls(Path(engine_calls_socket(str(options.telemetry))))
    connecting = asyncio.create_task(calls.run())
    try:
        yield GatewayRequests(api, calls, options.max_body_bytes)
    finally:
        connecting.cancel()


def _ticket_key(options: argparse.Namespace) -> Callable[[], bytes]:
    """Return a function that reads the key of tickets; None without a sidecar's socket."""
    return TicketKeyFile(Path(ticket_key_file(str(options.telemetry)))).key


def parser() -> argparse.ArgumentParser:
    """Return the parser of the process's flags."""
    flags = argparse.ArgumentParser(
        prog="penstock-engine",
        description="A simulated engine: OpenAI's API with a GPU's timing, for machines without GPUs.",
    )
    add = flags.add_argument
    add("-f", "--file", type=Path, required=True, metavar="POOL", help="pool file (ServingPool)")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=port, default=8000, help="port to listen on; 0 takes any (default: %(default)s)")
    add("--telemetry", type=Path, metavar="SOCK", help="Unix socket of the sidecar for step reports")
    add(
        "--gateway-requests",
        action="store_true",
        help="ask the sidecar about each request, because gateways send them to this port",
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="seed of timing noise and of answer lengths that requests do not state (default: %(default)s)",
    )
    add(
        "--truth",
        choices=[kind.value for kind in TruthKind],
        default=TruthKind.MEASURED.value,
        help="ground truth: measured kernel tables with noise and drift, or the planner's exact time model "
        "(default: %(default)s)",
    )
    add(
        "--drain-s",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds that responses in progress may take after SIGTERM (default: %(default)s)",
    )
    add(
        "--max-body-bytes",
        type=int,
        default=32 << 20,
        metavar="N",
        help="longest request body; a longer one gets 413 (default: %(default)s)",
    )
    add(
        "--api-key",
        default=engine_key(os.environ),
        metavar="KEY",
        help=f"key that requests to /v1 must carry; prefer {VARIABLE}, because process lists show flags",
    )
    tls = flags.add_argument_group(
        "TLS, with vLLM's flags", "Renewed files are reloaded, also without --enable-ssl-refresh."
    )
    tls.add_argument("--ssl-certfile", type=Path, metavar="PEM", help="serve TLS with this certificate")
    tls.add_argument("--ssl-keyfile", type=Path, metavar="PEM", help="key of the certificate")
    tls.add_argument("--ssl-ca-certs", type=Path, metavar="PEM", help="authorities of client certificates")
    tls.add_argument(
        "--ssl-cert-reqs",
        type=int,
        choices=[int(ssl.CERT_NONE), int(ssl.CERT_REQUIRED)],
        default=int(ssl.CERT_NONE),
        help="2 requires a client certificate (default: %(default)s)",
    )
    tls.add_argument("--enable-ssl-refresh", action="store_true", help="accepted for compatibility with vLLM")
    add("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    return flags


if __name__ == "__main__":
    sys.exit(main())
