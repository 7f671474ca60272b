"""The sidecar's flags: settings of one process. All others are in the pool file."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from penstock_runtime.engine_key import VARIABLE, engine_key
from penstock_runtime.flags import add_common, port, seconds
from penstock_runtime.serving import is_loopback


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port to listen on."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class SidecarTls:
    """Files of the server's certificate.

    client_ca: CA of the clients that may connect; None if all may.
    """

    cert: Path
    key: Path
    client_ca: Path | None


@dataclass(frozen=True, slots=True)
class EngineTls:
    """Files for TLS to the engine.

    ca: CA of the engine's certificate. server_name: name in it; None for the URL's host.
    cert, key: client certificate for an engine that requires one; None without.
    """

    ca: Path
    server_name: str | None
    cert: Path | None
    key: Path | None


@dataclass(frozen=True, slots=True)
class Options:
    """One sidecar's settings.

    metrics: address of the pages; None to serve none.
    drain_s: longest wait for open requests; None takes the pool's value.
    http: address for gateways; None to serve none. http_tls: for that port; None without TLS.
    engine_key: the engine's API key; empty if it has none.
    engine_tls: for an engine with https; None to trust this machine's CA certificates.
    """

    pool: Path
    name: str
    listen: Address
    engine: str
    telemetry: Path | None
    metrics: Address | None
    drain_s: float | None
    tls: SidecarTls | None
    log_level: str
    log_json: bool
    engine_key: str = field(default="", repr=False)
    http: Address | None = None
    http_tls: SidecarTls | None = None
    engine_tls: EngineTls | None = None


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Return the checked flags. An invalid one ends the process with a line on stderr and exit code 2."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        _check(given)
    except ValueError as error:
        parser.error(str(error))
    metrics = None if given.metrics_port is None else Address(given.metrics_host, given.metrics_port)
    tls = SidecarTls(given.tls_cert, given.tls_key, given.tls_client_ca) if given.tls_cert else None
    return Options(
        pool=given.file,
        name=given.name,
        listen=given.listen,
        engine=given.engine,
        telemetry=given.telemetry,
        metrics=metrics,
        drain_s=given.drain_s,
        tls=tls,
        log_level=given.log_level,
        log_json=given.log_json,
        engine_key=engine_key(os.environ),
        http=None if given.http_port is None else Address(given.listen.host, given.http_port),
        http_tls=None if given.http_insecure else tls,
        engine_tls=_engine_tls(given),
    )


def _engine_tls(given: argparse.Namespace) -> EngineTls | None:
    if given.engine_tls_ca is None:
        return None
    return EngineTls(
        given.engine_tls_ca, given.engine_tls_server_name, given.engine_tls_cert, given.engine_tls_key
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "penstock-sidecar",
        description="Sidecar of one engine: admits requests, forwards them, and returns tokens.",
        epilog=f"If the engine requires an API key, it is read from the environment variable {VARIABLE}.",
    )
    add_common(parser)
    add = parser.add_argument
    add("--name", required=True, help="this replica's name, like r0")
    add(
        "--listen",
        type=_address,
        required=True,
        metavar="HOST:PORT",
        help="address to listen on for routers; port 0 for any",
    )
    add(
        "--http-port",
        type=port,
        metavar="PORT",
        help="port for OpenAI's HTTP API behind a gateway, on the host of --listen; 0 for any",
    )
    add("--metrics-port", type=port, metavar="PORT", help="port for /metrics, /health and /ready; 0 for any")
    add(
        "--metrics-host",
        default="127.0.0.1",
        metavar="HOST",
        help="address of --metrics-port (default: %(default)s)",
    )
    add(
        "--drain-s",
        type=seconds,
        metavar="S",
        help="when stopped, longest wait for open requests (default: the pool's value)",
    )
    _add_engine(parser)
    _add_tls(parser)
    return parser


def _add_engine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the engine").add_argument
    add("--engine", type=_url, required=True, metavar="URL", help="its URL, like http://127.0.0.1:8000")
    add("--telemetry", type=Path, metavar="PATH", help="Unix socket for the engine's step reports")
    add(
        "--engine-tls-ca",
        type=Path,
        metavar="PEM",
        help="CA certificates that sign the engine's certificate (default: those of this machine)",
    )
    add(
        "--engine-tls-server-name",
        metavar="NAME",
        help="DNS name in the engine's certificate (default: the host of --engine)",
    )
    add(
        "--engine-tls-cert",
        type=Path,
        metavar="PEM",
        help="client certificate for an engine that requires one (vLLM's --ssl-cert-reqs 2)",
    )
    add("--engine-tls-key", type=Path, metavar="PEM", help="private key of --engine-tls-cert")


def _add_tls(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("TLS of routers and gateways").add_argument
    add("--tls-cert", type=Path, metavar="PEM", help="serve TLS with this certificate")
    add("--tls-key", type=Path, metavar="PEM", help="private key of --tls-cert")
    add("--tls-client-ca", type=Path, metavar="PEM", help="accept only clients with a certificate of this CA")
    add(
        "--insecure", action="store_true", help="allow --listen without TLS on an address beyond this machine"
    )
    add("--http-insecure", action="store_true", help="serve --http-port without TLS despite --tls-cert")


def _check(given: argparse.Namespace) -> None:
    """Raise ValueError if flags contradict each other, or name files that do not exist."""
    if bool(given.tls_cert) != bool(given.tls_key):
        raise ValueError("--tls-cert and --tls-key belong together")
    if given.tls_client_ca and not given.tls_cert:
        raise ValueError("--tls-client-ca needs --tls-cert and --tls-key")
    if not given.tls_cert and not given.insecure and not given.listen.loopback:
        raise ValueError(
            f"--listen {given.listen} is reachable from other machines: give --tls-cert or --insecure"
        )
    if given.engine_tls_ca and not given.engine.startswith("https:"):
        raise ValueError("--engine-tls-ca needs an --engine with https")
    if given.engine_tls_server_name and not given.engine_tls_ca:
        raise ValueError("--engine-tls-server-name needs --engine-tls-ca")
    if bool(given.engine_tls_cert) != bool(given.engine_tls_key):
        raise ValueError("--engine-tls-cert and --engine-tls-key belong together")
    if given.engine_tls_cert and not given.engine_tls_ca:
        raise ValueError("--engine-tls-cert needs --engine-tls-ca")
    engine_files = (given.engine_tls_ca, given.engine_tls_cert, given.engine_tls_key)
    for path in (given.tls_cert, given.tls_key, given.tls_client_ca, *engine_files):
        if path and not path.is_file():
            raise ValueError(f"{path}: no such file")


def _address(text: str) -> Address:
    host, _, given_port = text.rpartition(":")
    if not host or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise argparse.ArgumentTypeError(f"'{text}' is not HOST:PORT, like 127.0.0.1:9000")
    return Address(host.strip("[]"), port(given_port))


def _url(text: str) -> str:
    if not _is_url(text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a URL like http://127.0.0.1:8000")
    return text.rstrip("/")


def _is_url(text: str) -> bool:
    """Return whether a URL is valid. One with a password is not, because URLs are logged."""
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:  # no port
        return False
    return bool(known and parts.hostname and parts.username is None and text.isascii() and text.isprintable())
