"""The router process: `penstock-router -f pool.yaml --replica r0=127.0.0.1:7001 --replica r1=…`."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import grpc
import structlog
from penstock_pool import Pool, PoolError, load_keys, load_pool
from penstock_runtime.flags import port
from penstock_runtime.grpc_options import CLIENT_OPTIONS
from penstock_runtime.http_protocol import HttpBounds
from penstock_runtime.logs import configure_logs
from penstock_runtime.serving import address_of, listen, run_process, serving

from penstock_router.app import RouterApp
from penstock_router.backoff import Backoff
from penstock_router.discovery import ReplicaSet, fixed
from penstock_router.replica_link import Connect, ReplicaLink
from penstock_router.rotation import Rotation
from penstock_router.settings import Settings, settings_of

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Options:
    """What one router process is told beside its pool."""

    host: str
    port: int
    replicas: ReplicaSet
    connect: Connect
    drain_s: float
    lame_duck_s: float


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Exit codes: 0 stopped, 1 failure, 2 bad input."""
    args = _parser().parse_args(argv)
    configure_logs("penstock-router", args.log_level, args.log_json)
    try:
        pool = load_pool(args.file)
        settings = settings_of(pool, load_keys(pool, args.file.parent))
        options = _options(args, pool)
    except PoolError as error:
        print(*error.lines, sep="\n", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return run_process(lambda stop: serve(pool, settings, options, stop))


async def serve(pool: Pool, settings: Settings, options: Options, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then drain. Raises StartError where the address cannot be had."""
    random = Random()
    rotation = Rotation(lambda name, address: ReplicaLink(name, address, options.connect, Backoff(random)))
    app = RouterApp(pool, settings, rotation)
    listener = listen(options.host, options.port)
    bounds = HttpBounds(head_bytes=pool.spec.router.max_header_bytes)
    following = asyncio.create_task(rotation.follow(fixed(options.replicas)))
    stopping = asyncio.create_task(stop.wait())
    try:
        async with serving(app, listener, options.drain_s, bounds):
            log.info("ready", address=address_of(listener), replicas=len(options.replicas))
            await asyncio.wait({stopping, following}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
            app.draining = True
            await asyncio.sleep(options.lame_duck_s)
    finally:
        stopping.cancel()
        following.cancel()
        await asyncio.wait({following})
    log.info("stopped")


def _options(args: argparse.Namespace, pool: Pool) -> Options:
    drain_s = pool.spec.router.drain_timeout_s if args.drain_s is None else args.drain_s
    return Options(
        args.host, args.port, dict(args.replica), _connect(args), drain_s, min(args.lame_duck_s, drain_s)
    )


def _connect(args: argparse.Namespace) -> Connect:
    """How replicas are connected to. Raises OSError where a certificate cannot be read."""
    if args.tls_ca is None:
        return lambda address: grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        args.tls_ca.read_bytes(),
        args.tls_key.read_bytes() if args.tls_key else None,
        args.tls_cert.read_bytes() if args.tls_cert else None,
    )
    return lambda address: grpc.aio.secure_channel(address, credentials, options=CLIENT_OPTIONS)


def _replica(text: str) -> tuple[str, str]:
    name, equals, address = text.partition("=")
    host, colon, port = address.rpartition(":")
    if not (name and equals and host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=HOST:PORT, like r0=127.0.0.1:7001")
    return name, address


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock-router",
        description="OpenAI-compatible HTTP in front of a pool's replicas: asks one, walks to the next.",
    )
    add = parser.add_argument
    add("-f", "--file", type=Path, required=True, metavar="POOL", help="the pool file")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=port, default=8080, help="port to listen on, 0 for any (default: %(default)s)")
    add(
        "--replica",
        type=_replica,
        action="append",
        required=True,
        metavar="NAME=HOST:PORT",
        help="a replica's sidecar; once for each",
    )
    add(
        "--drain-s", type=_seconds, help="finish open requests for so long when stopped (default: the pool's)"
    )
    add(
        "--lame-duck-s",
        type=_seconds,
        default=0.0,
        help="when stopped, first go on serving for so long while /ready says no (default: %(default)s)",
    )
    tls = parser.add_argument_group("TLS to the replicas (off without --tls-ca)")
    tls.add_argument(
        "--tls-ca", type=Path, metavar="PEM", help="authorities that sign replicas' certificates"
    )
    tls.add_argument("--tls-cert", type=Path, metavar="PEM", help="this router's certificate, for mutual TLS")
    tls.add_argument("--tls-key", type=Path, metavar="PEM", help="its key")
    add("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    add("--log-json", action="store_true", help="one JSON object a line")
    return parser


if __name__ == "__main__":
    sys.exit(main())
