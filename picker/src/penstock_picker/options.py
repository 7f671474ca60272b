"""The picker's flags: settings of one process. All others are in the pool file."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock_routing import flags
from penstock_routing.flags import FrontOptions
from penstock_runtime.flags import port, seconds


@dataclass(frozen=True, slots=True)
class Options(FrontOptions):
    """One picker's own settings.

    ext_authz_port, ext_proc_port: ports of the two protocols; None if the picker does not serve it.
    admin_host, admin_port: address of metrics and health.
    endpoints_file: file of replicas' endpoints for an Envoy beside the picker; None if no Envoy reads one.
    envoy_admin: that Envoy's administration socket; None if the picker does not drain it.
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
        return "say how gateways ask: --ext-authz-port, --ext-proc-port, or both"
    if given.envoy_admin is None and given.drain_s is not None:
        return "--drain-s is for --envoy-admin"
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock-picker",
        description="Endpoint picker: tells a gateway which replicas to ask for a request, in order.",
    )
    add = parser.add_argument
    add("-f", "--file", type=Path, required=True, metavar="POOL", help="the pool file")
    add("--host", default="127.0.0.1", help="address that gateways ask at (default: %(default)s)")
    add(
        "--ext-proc-port",
        type=port,
        help="serve Envoy's ext_proc, as the Gateway API Inference Extension has it; 0 for any port",
    )
    add("--ext-authz-port", type=port, help="serve Envoy's ext_authz over HTTP; 0 for any port")
    add(
        "--admin-host",
        default="127.0.0.1",
        help="address of the admin port: metrics and health (default: %(default)s)",
    )
    add("--admin-port", type=port, default=9081, help="the admin port, 0 for any (default: %(default)s)")
    add("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    add("--log-json", action="store_true", help="one JSON object a line")
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
        help="keep the endpoints of replicas in this file, which Envoy watches (EDS)",
    )
    add(
        "--envoy-admin",
        type=Path,
        metavar="SOCKET",
        help="drain Envoy by its administration socket when this picker is stopped",
    )
    add("--drain-s", type=seconds, help="longest wait for Envoy's requests (default: the pool's)")
    add(
        "--lame-duck-s",
        type=seconds,
        default=0.0,
        help="when stopped, first keep serving for so long while readiness fails (default: %(default)s)",
    )
