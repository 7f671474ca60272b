"""The router's flags: settings of one process. All others are in the pool file."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from penstock_routing import flags
from penstock_routing.flags import FrontOptions
from penstock_runtime.flags import add_common, port, seconds


@dataclass(frozen=True, slots=True)
class Options(FrontOptions):
    """One router's own settings.

    host, port: address of the API. admin_host, admin_port: address of metrics and the state of the pool.
    drain_s: longest wait for open requests; None takes the pool's value.
    lame_duck_s: how long the router serves while `/ready` fails, before it drains.
    engine_server_name: name in engines' certificates; None for the name in replicas' certificates.
    """

    host: str
    port: int
    admin_host: str
    admin_port: int
    drain_s: float | None
    lame_duck_s: float
    engine_server_name: str | None = None


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Return the flags. An invalid one ends the process with a line on stderr and exit code 2."""
    parser = _parser()
    given = parser.parse_args(arguments)
    redis_url = flags.redis_url(given.redis_url_file)
    if problem := flags.problem(given, redis_url):
        parser.error(problem)
    return Options(
        pool=given.file,
        host=given.host,
        port=given.port,
        admin_host=given.admin_host,
        admin_port=given.admin_port,
        replicas=dict(given.replica),
        service=given.discover,
        kubeconfig=given.kubeconfig,
        drain_s=given.drain_s,
        lame_duck_s=given.lame_duck_s,
        engine_server_name=given.engine_tls_server_name,
        certificate=flags.certificate(given),
        replica_tls=flags.replica_tls(given),
        key_secrets=dict(given.key_secret),
        redis_url=redis_url,
        log_level=given.log_level,
        log_json=given.log_json,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock-router",
        description="Router: serves the OpenAI API and tries a pool's replicas in order.",
    )
    add_common(parser)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on for the API (default: %(default)s)")
    add("--port", type=port, default=8080, help="port for the API, 0 for any (default: %(default)s)")
    add(
        "--admin-host",
        default="127.0.0.1",
        help="address to listen on for metrics and the state of the pool (default: %(default)s)",
    )
    add("--admin-port", type=port, default=9080, help="port for them, 0 for any (default: %(default)s)")
    add(
        "--drain-s",
        type=seconds,
        help="when stopped, longest wait for open requests (default: the pool's value)",
    )
    add(
        "--lame-duck-s",
        type=seconds,
        default=0.0,
        help="when stopped, keep serving this long while /ready answers 503 (default: %(default)s)",
    )
    flags.add_sharing(parser)
    flags.add_replicas(parser)
    flags.add_tls(parser, "the API")
    add(
        "--engine-tls-server-name",
        metavar="NAME",
        help="DNS name in the certificates of engines (default: that of --replica-tls-server-name)",
    )
    return parser
