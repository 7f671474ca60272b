"""The picker's flags: settings of one process. All others are in the pool file."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock_routing import flags
from penstock_routing.flags import FrontOptions
from penstock_runtime.flags import add_common, port, seconds


@dataclass(frozen=True, slots=True)
class Options(FrontOptions):
    """One picker's own settings.

    ext_authz_port, ext_proc_port: ports of the two protocols; None if the picker does not serve it.
    admin_host, admin_port: address of metrics and health.
    endpoints_file: file of replicas' endpoints for an Envoy beside the picker; None if no Envoy reads one.
    envoy_admin: that Envoy's administration socket; None if the picker neither drains nor restarts it.
    drain_s: longest wait for Envoy's requests; None takes the pool's value.
    lame_duck_s: how long the picker serves with failing readiness before it drains.
    """

    host: str
    ext_authz_port: int | None
    ext_proc_port: int | None
    admin_host: str
    admin_port: int
    endpoints_file: Path | None
    envoy_admin: Path | None
    drain_s: float | None
    lame_duck_s: float


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Return the flags. An invalid one ends the process with a line on stderr and exit code 2."""
    parser = _parser()
    given = parser.parse_args(arguments)
    redis_url = flags.redis_url(given.redis_url_file)
    if problem := _problem(given) or flags.problem(given, redis_url):
        parser.error(problem)
    return Options(
        pool=given.file,
        replicas=dict(given.replica),
        service=given.discover,
        kubeconfig=given.kubeconfig,
        replica_tls=flags.replica_tls(given),
        key_secrets=dict(given.key_secret),
        redis_url=redis_url,
        host=given.host,
        ext_authz_port=given.ext_authz_port,
        ext_proc_port=given.ext_proc_port,
        admin_host=given.admin_host,
        admin_port=given.admin_port,
        certificate=flags.certificate(given),
        endpoints_file=given.endpoints_file,
        envoy_admin=given.envoy_admin,
        drain_s=given.drain_s,
        lame_duck_s=given.lame_duck_s,
        log_level=given.log_level,
        log_json=given.log_json,
    )


def _problem(given: argparse.Namespace) -> str | None:
    if given.ext_authz_port is None and given.ext_proc_port is None:
        return "give --ext-authz-port, --ext-proc-port, or both"
    if given.envoy_admin is None and given.drain_s is not None:
        return "--drain-s needs --envoy-admin"
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock-picker",
        description="Endpoint picker: selects the replicas to which a gateway sends each request, in order.",
    )
    add_common(parser)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on for gateways (default: %(default)s)")
    add(
        "--ext-proc-port",
        type=port,
        help="port for Envoy's ext_proc, as the Gateway API Inference Extension uses it; 0 for any",
    )
    add("--ext-authz-port", type=port, help="port for Envoy's ext_authz over HTTP; 0 for any")
    add(
        "--admin-host",
        default="127.0.0.1",
        help="address to listen on for metrics and health (default: %(default)s)",
    )
    add("--admin-port", type=port, default=9081, help="port for them, 0 for any (default: %(default)s)")
    _add_envoy(parser)
    flags.add_sharing(parser)
    flags.add_replicas(parser)
    flags.add_tls(parser, "gateways")
    return parser


def _add_envoy(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("an Envoy beside this picker").add_argument
    add(
        "--endpoints-file",
        type=Path,
        metavar="FILE",
        help="write the endpoints of replicas to this file, which Envoy watches (EDS)",
    )
    add(
        "--envoy-admin",
        type=Path,
        metavar="SOCKET",
        help="drain Envoy through its administration socket when this picker is stopped; when it starts, "
        "end an Envoy that is drained",
    )
    add("--drain-s", type=seconds, help="longest wait for Envoy's requests (default: the pool's value)")
    add(
        "--lame-duck-s",
        type=seconds,
        default=0.0,
        help="when stopped, keep serving this long with failing readiness (default: %(default)s)",
    )
