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
from penstock_runtime.envoy.bootstrap import bootstrap
from penstock_runtime.envoy.endpoints import write_endpoints
from penstock_runtime.envoy.ext_authz import PickerFilter
from penstock_runtime.envoy.json_parts import seconds, socket_address, static_cluster
from penstock_runtime.envoy.settings import EnvoySettings, SocketAddress, Tracing

TYPE = "type.googleapis.com/envoy.extensions.filters.http"
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


def ext_authz(address: str, *, fail_open: bool = False, timeout: float = 1.0) -> PickerFilter:
    """Asking as the project's own Envoys do."""
    return envoy_ext_authz.ext_authz(_settings(picker=_address(address), fail_open=fail_open), timeout)


def ext_proc(
    address: str, *, fail_open: bool = False, timeout: float = 1.0, mode: str = "FULL_DUPLEX_STREAMED"
) -> PickerFilter:
    """The filter that asks as the endpoint picker protocol has it, and how the picker is reached.

    timeout: `message_timeout` does not hold while a body is streamed; then pings show a silent picker.
    """
    filter = {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": f"{TYPE}.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
            "message_timeout": seconds(timeout),
            "failure_mode_allow": fail_open,
            "status_on_error": {"code": "ServiceUnavailable"},
            "mutation_rules": {"allow_envoy": True},
            "metadata_options": {
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
                "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint"]},
            },
            "processing_mode": {
                "request_header_mode": "SEND",
                "request_body_mode": mode,
                "request_trailer_mode": "SEND" if mode == "FULL_DUPLEX_STREAMED" else "SKIP",
                "response_header_mode": "SKIP",
                "response_body_mode": "NONE",
                "response_trailer_mode": "SKIP",
            },
        },
    }
    protocol = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    pings = {"connection_keepalive": {"interval": seconds(timeout), "timeout": seconds(timeout)}}
    h2: dict[str, Any] = {"explicit_http_config": {"http2_protocol_options": pings}}
    options = {protocol: {"@type": f"type.googleapis.com/{protocol}", **h2}}
    at = socket_address(_address(address))
    picker = static_cluster("picker", at, 0.25, typed_extension_protocol_options=options)
    return PickerFilter(filter, "envoy.lb", picker)


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
    process = _start(file, tmp_path / "envoy.log")
    try:
        async with (
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{api.port}", timeout=PATIENCE_S) as http,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{pages.port}", timeout=PATIENCE_S) as its_pages,
        ):
            await _ready(its_pages, process)
            yield Gateway(http, its_pages, process, settings)
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
