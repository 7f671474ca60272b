"""The router's flags: what is this process's own. Everything else is in the pool file."""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from penstock_routing.applications.key_sources import SecretName
from penstock_routing.connections.replica_channel import Tls
from penstock_routing.discovery.endpoints import Service
from penstock_runtime.flags import port

REDIS_URL = "PENSTOCK_REDIS_URL"
"""In the environment, or a file: a URL may hold a password, so it is no flag."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files of the API's identity."""

    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Options:
    """One router's own settings.

    host, port: of the API. admin_host, admin_port: of metrics and the state of the pool.
    replicas: their addresses by name, where given.
    service: whose endpoints they are, where they are to be discovered. kubeconfig: how to reach its cluster;
        None for the pod's own account.
    drain_s: None takes the pool's.
    certificate: of the API. replica_tls: of connections to replicas. None: in the clear.
    key_secrets: where applications' keys are, by application; of others they are in the pool's files.
    redis_url: reads where the Redis is that routers share through; None: they share nothing.
    """

    pool: Path
    host: str
    port: int
    admin_host: str
    admin_port: int
    replicas: dict[str, str]
    service: Service | None
    kubeconfig: Path | None
    drain_s: float | None
    lame_duck_s: float
    certificate: Certificate | None
    replica_tls: Tls | None
    key_secrets: dict[str, SecretName]
    redis_url: Callable[[], str] | None
    log_level: str
    log_json: bool


def parse(arguments: Sequence[str] | None = None) -> Options:
    """The flags, checked. A wrong one ends the process with a line on stderr and exit code 2."""
    parser = _parser()
    given = parser.parse_args(arguments)
    redis_url = _redis_url(given.redis_url_file)
    if problem := _problem(given) or (redis_url and _redis_problem(redis_url)):
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
        certificate=Certificate(given.tls_cert, given.tls_key) if given.tls_cert else None,
        replica_tls=_replica_tls(given),
        key_secrets=dict(given.key_secret),
        redis_url=redis_url,
        log_level=given.log_level,
        log_json=given.log_json,
    )


def _replica_tls(given: argparse.Namespace) -> Tls | None:
    if not given.replica_tls_ca:
        return None
    return Tls(
        given.replica_tls_ca, given.replica_tls_cert, given.replica_tls_key, given.replica_tls_server_name
    )


def _problem(given: argparse.Namespace) -> str | None:
    if bool(given.replica) == bool(given.discover):
        return "say where the replicas are: --replica once for each, or --discover"
    if given.kubeconfig and not (given.discover or given.key_secret):
        return "--kubeconfig is for --discover and --key-secret"
    if bool(given.tls_cert) != bool(given.tls_key):
        return "--tls-cert and --tls-key belong together"
    return _replica_tls_problem(given)


def _replica_tls_problem(given: argparse.Namespace) -> str | None:
    if bool(given.replica_tls_cert) != bool(given.replica_tls_key):
        return "--replica-tls-cert and --replica-tls-key belong together"
    if not given.replica_tls_ca and (given.replica_tls_cert or given.replica_tls_server_name):
        return "TLS to the replicas needs --replica-tls-ca"
    return None


def _redis_url(file: Path | None) -> Callable[[], str] | None:
    """From the file, as it is whenever it is asked for; else from the environment."""
    if file is not None:
        return lambda: file.read_text(encoding="utf-8").strip()
    given = os.environ.get(REDIS_URL)
    return (lambda: given) if given else None


def _redis_problem(redis_url: Callable[[], str]) -> str | None:
    """What is wrong with the URL, without repeating it."""
    try:
        parts = urlsplit(redis_url())
        right = parts.scheme in ("redis", "rediss") and parts.hostname and parts.port != 0
    except OSError as error:
        return f"--redis-url-file: {error.filename}: {error.strerror}"
    except ValueError:
        right = False
    return None if right else "the URL of Redis is not redis://HOST:PORT or rediss://HOST:PORT"


def _replica(text: str) -> tuple[str, str]:
    name, equals, address = text.partition("=")
    host, colon, given_port = address.rpartition(":")
    if not (name and equals and host and colon and given_port.isdigit() and 0 < int(given_port) < 65536):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=HOST:PORT, like r0=127.0.0.1:7001")
    return name, address


def _service(text: str) -> Service:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not NAMESPACE/SERVICE, like default/llama3-8b-replicas"
        )
    return Service(namespace, name)


def _key_secret(text: str) -> tuple[str, SecretName]:
    application, equals, secret = text.partition("=")
    namespace, slash, name = secret.partition("/")
    if not (application and equals and namespace and slash and name) or "/" in name:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not APPLICATION=NAMESPACE/SECRET, like ide=default/ide-keys"
        )
    return application, SecretName(namespace, name)


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
        description="OpenAI-compatible HTTP in front of a pool's replicas, tried one after the other.",
    )
    add = parser.add_argument
    add("-f", "--file", type=Path, required=True, metavar="POOL", help="the pool file")
    add("--host", default="127.0.0.1", help="address that serves the API (default: %(default)s)")
    add("--port", type=port, default=8080, help="port that serves the API, 0 for any (default: %(default)s)")
    add(
        "--admin-host",
        default="127.0.0.1",
        help="address of the admin port: metrics, and the state of the pool (default: %(default)s)",
    )
    add("--admin-port", type=port, default=9080, help="the admin port, 0 for any (default: %(default)s)")
    add(
        "--drain-s", type=_seconds, help="finish open requests for so long when stopped (default: the pool's)"
    )
    add(
        "--lame-duck-s",
        type=_seconds,
        default=0.0,
        help="when stopped, first go on serving for so long while /ready says no (default: %(default)s)",
    )
    add(
        "--redis-url-file",
        type=Path,
        metavar="FILE",
        help="share with the pool's other routers through the Redis at this URL, redis:// or rediss://; read "
        f"anew for every connection (else: the environment's {REDIS_URL}, if there is one)",
    )
    add(
        "--key-secret",
        type=_key_secret,
        action="append",
        default=[],
        metavar="APPLICATION=NAMESPACE/SECRET",
        help="follow this application's keys in this Kubernetes Secret; once for each. The pool's file of "
        "them is then read at the start only",
    )
    add("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    add("--log-json", action="store_true", help="one JSON object a line")
    _add_replicas(parser)
    _add_tls(parser)
    return parser


def _add_replicas(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("where the replicas are").add_argument
    add(
        "--replica",
        type=_replica,
        action="append",
        default=[],
        metavar="NAME=HOST:PORT",
        help="a replica's sidecar; once for each",
    )
    add(
        "--discover",
        type=_service,
        metavar="NAMESPACE/SERVICE",
        help="follow this Kubernetes Service's endpoints, those of its port 'replica'",
    )
    add(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="reach the cluster by it, not by the pod's own account",
    )


def _add_tls(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "TLS of the API (off without --tls-cert)", "Files that are renewed are read again, without a restart."
    )
    add = group.add_argument
    add("--tls-cert", type=Path, metavar="PEM", help="serve the API over TLS with this certificate")
    add("--tls-key", type=Path, metavar="PEM", help="and this key")
    group = parser.add_argument_group(
        "TLS to the replicas (off without --replica-tls-ca)", "Files are read anew for every connection."
    )
    add = group.add_argument
    add("--replica-tls-ca", type=Path, metavar="PEM", help="authorities that sign replicas' certificates")
    add("--replica-tls-cert", type=Path, metavar="PEM", help="this router's certificate, for mutual TLS")
    add("--replica-tls-key", type=Path, metavar="PEM", help="its key")
    add(
        "--replica-tls-server-name",
        metavar="NAME",
        help="whose certificate replicas show, whatever their address",
    )
