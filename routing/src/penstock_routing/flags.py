"""Flags that router and picker share: replica addresses, keys, Redis, TLS."""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from penstock_routing.applications.key_sources import SecretName
from penstock_routing.connections.replica_channel import Tls
from penstock_routing.discovery.endpoints import Service

REDIS_URL = "PENSTOCK_REDIS_URL"
"""Environment variable with the URL of Redis. It may hold a password, so it is not a flag."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files of the certificate that a process serves with."""

    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class PoolAccess:
    """How a process reaches its pool.

    pool: the pool file. replicas: addresses by name, if given.
    service: the Service whose endpoints are the replicas, if they are discovered.
    kubeconfig: access to its cluster; None for the pod's service account.
    replica_tls: for connections to replicas; None without TLS.
    key_secrets: Secrets with keys, by application. Other applications' keys are in the pool's files.
    redis_url: returns the URL of the Redis through which routers share state; None if there is none.
    """

    pool: Path
    replicas: dict[str, str]
    service: Service | None
    kubeconfig: Path | None
    replica_tls: Tls | None
    key_secrets: dict[str, SecretName]
    redis_url: Callable[[], str] | None


@dataclass(frozen=True, slots=True)
class FrontOptions(PoolAccess):
    """Settings of a process in front of the replicas. certificate: its own; None to serve without TLS."""

    certificate: Certificate | None
    log_level: str
    log_json: bool


def add_sharing(parser: argparse.ArgumentParser) -> None:
    """Add the flags of Redis and of applications' keys."""
    add = parser.add_argument
    add(
        "--redis-url-file",
        type=Path,
        metavar="FILE",
        help="file with the URL (redis:// or rediss://) of the Redis through which the pool's routers share "
        f"state; read again for each connection (default: the environment variable {REDIS_URL}, if set)",
    )
    add(
        "--key-secret",
        type=_key_secret,
        action="append",
        default=[],
        metavar="APPLICATION=NAMESPACE/SECRET",
        help="take this application's keys from this Kubernetes Secret, and follow its changes; repeat for "
        "each application. The key file in the pool is then read only at the start",
    )


def add_replicas(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the replicas' addresses."""
    add = parser.add_argument_group("where the replicas are").add_argument
    add(
        "--replica",
        type=_replica,
        action="append",
        default=[],
        metavar="NAME=HOST:PORT",
        help="address of a replica's sidecar; repeat for each replica",
    )
    add(
        "--discover",
        type=_service,
        metavar="NAMESPACE/SERVICE",
        help="find replicas by the endpoints of this Kubernetes Service, at its port named 'replica'",
    )
    add(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="reach the cluster with this kubeconfig (default: with the pod's service account)",
    )


def add_tls(parser: argparse.ArgumentParser, served: str) -> None:
    """Add the flags of TLS. served: what this process serves, for the help texts."""
    group = parser.add_argument_group(
        f"TLS of {served} (off without --tls-cert)",
        "Renewed files are read again without a restart.",
    )
    add = group.add_argument
    add("--tls-cert", type=Path, metavar="PEM", help=f"serve {served} over TLS with this certificate")
    add("--tls-key", type=Path, metavar="PEM", help="private key of --tls-cert")
    group = parser.add_argument_group(
        "TLS to the replicas (off without --replica-tls-ca)", "Files are read again for each connection."
    )
    add = group.add_argument
    add("--replica-tls-ca", type=Path, metavar="PEM", help="CA certificates that sign replicas' certificates")
    add("--replica-tls-cert", type=Path, metavar="PEM", help="this process's certificate, for mutual TLS")
    add("--replica-tls-key", type=Path, metavar="PEM", help="private key of --replica-tls-cert")
    add(
        "--replica-tls-server-name",
        metavar="NAME",
        help="DNS name in replicas' certificates (default: the address that is connected to)",
    )


def certificate(given: argparse.Namespace) -> Certificate | None:
    """Return the certificate to serve with; None to serve without TLS."""
    return Certificate(given.tls_cert, given.tls_key) if given.tls_cert else None


def replica_tls(given: argparse.Namespace) -> Tls | None:
    """Return the TLS of connections to replicas; None without TLS."""
    if not given.replica_tls_ca:
        return None
    return Tls(
        given.replica_tls_ca, given.replica_tls_cert, given.replica_tls_key, given.replica_tls_server_name
    )


def problem(given: argparse.Namespace, redis_url: Callable[[], str] | None) -> str | None:
    """Return the first contradiction between flags; None if there is none."""
    return _inconsistency(given) or (redis_url and _redis_problem(redis_url)) or None


def _inconsistency(given: argparse.Namespace) -> str | None:
    if bool(given.replica) == bool(given.discover):
        return "give either --replica, once for each replica, or --discover"
    if given.kubeconfig and not (given.discover or given.key_secret):
        return "--kubeconfig needs --discover or --key-secret"
    if bool(given.tls_cert) != bool(given.tls_key):
        return "--tls-cert and --tls-key belong together"
    return _replica_tls_problem(given)


def _replica_tls_problem(given: argparse.Namespace) -> str | None:
    if bool(given.replica_tls_cert) != bool(given.replica_tls_key):
        return "--replica-tls-cert and --replica-tls-key belong together"
    if not given.replica_tls_ca and (given.replica_tls_cert or given.replica_tls_server_name):
        return "TLS to the replicas needs --replica-tls-ca"
    return None


def redis_url(file: Path | None) -> Callable[[], str] | None:
    """Return a function that returns the URL of Redis, from the file or the environment; None without one."""
    if file is not None:
        return lambda: file.read_text(encoding="utf-8").strip()
    given = os.environ.get(REDIS_URL)
    return (lambda: given) if given else None


def _redis_problem(redis_url: Callable[[], str]) -> str | None:
    """Return why the URL is invalid, without repeating it; None if it is valid."""
    try:
        parts = urlsplit(redis_url())
        valid = parts.scheme in ("redis", "rediss") and parts.hostname and parts.port != 0
    except OSError as error:
        return f"--redis-url-file: {error.filename}: {error.strerror}"
    except ValueError:
        valid = False
    return None if valid else "the URL of Redis is not redis://HOST:PORT or rediss://HOST:PORT"


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
