"""The real Envoy, from PyPI, in front of replicas and beside a picker."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import orjson
from penstock_cli.local.envoy import envoy_command, envoy_program
from penstock_cli.local.ports import free_ports
from penstock_runtime.envoy import ext_authz as envoy_ext_authz
from penstock_runtime.envoy import ext_proc as envoy_ext_proc
from penstock_runtime.envoy.bootstrap import bootstrap
from penstock_runtime.envoy.endpoints import write_endpoints
from penstock_runtime.envoy.ext_authz import PickerFilter
from penstock_runtime.envoy.ext_proc import DUPLEX
from penstock_runtime.envoy.settings import EnvoySettings, SocketAddress, Tracing

PATIENCE_S = 30.0
"""Longest wait for Envoy to start. Reached only where it does not."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running Envoy. http: its clients' side. pages: readiness and metrics."""

    http: httpx2.AsyncClient
    pages: httpx2.AsyncClient
    process: subprocess.Popen[bytes]
    settings: EnvoySettings

    async def chat(self, body: bytes, **headers: str) -> httpx2.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post("/v1/chat/completions", content=body, headers=named)


def ext_authz(address: str, *, fail_open: bool = False, timeout: float = PATIENCE_S) -> PickerFilter:
    """Asking as the project's own Envoys do."""
    return envoy_ext_authz.ext_authz(_settings(picker=_address(address), fail_open=fail_open), timeout)


def ext_proc(
    address: str, *, fail_open: bool = False, timeout: float = PATIENCE_S, mode: str = DUPLEX
) -> PickerFilter:
    """Asking as the endpoint picker protocol has it."""
    return envoy_ext_proc.ext_proc(_settings(picker=_address(address), fail_open=fail_open), timeout, mode)


def _address(reported: str) -> SocketAddress:
    host, _, port = reported.rpartition(":")
    return SocketAddress(host, int(port))


def _settings(folder: Path = Path(), **given: Any) -> EnvoySettings:
    here = SocketAddress("127.0.0.1", 0)
    return EnvoySettings(**{"api": here, "pages": here, "picker": here, "folder": folder, **given})


@asynccontextmanager
async def gateway(
    tmp_path: Path, asks: PickerFilter, endpoints: Sequence[str], tracing: Tracing | None = None
) -> AsyncIterator[Gateway]:
    """Envoy, ready. asks: how it asks the picker. endpoints: of the replicas that it knows."""
    api, pages = (SocketAddress("127.0.0.1", port) for port in free_ports(2, "127.0.0.1"))
    settings = _settings(tmp_path, api=api, pages=pages, tracing=tracing)
    file = tmp_path / "envoy.json"
    file.write_bytes(orjson.dumps(bootstrap(settings, asks)))
    write_endpoints(Path(settings.endpoints_file), endpoints)
    async with _serving(settings) as front:
        yield front


@asynccontextmanager
async def restarted(ended: Gateway) -> AsyncIterator[Gateway]:
    """The Envoy in place of one that has ended, as its supervisor starts it."""
    async with _serving(ended.settings) as front:
        yield front


@asynccontextmanager
async def _serving(settings: EnvoySettings) -> AsyncIterator[Gateway]:
    process = _start(Path(settings.file("envoy.json")), Path(settings.folder) / "envoy.log")
    try:
        async with (
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{settings.api.port}", timeout=PATIENCE_S) as http,
            httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{settings.pages.port}", timeout=PATIENCE_S
            ) as pages,
        ):
            await _ready(pages, process)
            yield Gateway(http, pages, process, settings)
    finally:
        process.kill()
        process.wait()


def _start(config: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(envoy_command(envoy_program(), config), stdout=out, stderr=out)


async def _ready(pages: httpx2.AsyncClient, process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            assert process.poll() is None, "see envoy.log"
            try:
                if (await pages.get("/ready")).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.02)  # Envoy sends no event when it listens
