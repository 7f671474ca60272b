"""Envoy, the picker, sidecars and simulated engines as separate processes.

With `answerPath: direct` Envoy's endpoints are the engines' own ports.
"""

import re
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import httpx2
import orjson
import pytest
from gateway.envoy import Gateway, ext_authz, gateway
from patience import PATIENCE_S, answered
from replica_processes import ADDRESSES, engine, logged, sidecar, started

POOL = """
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {name: test}
spec:
  model: {name: tiny}
  engine: {type: simulated, timeModel: llama-3-8b-h100, maxModelLen: 4096, answerPath: PATH}
  scheduling: {policy: slos-serve}
  router: {bufferBytes: BUFFER_BYTES}
  routing: {order: round-robin, maxHops: 2, backup: reject}
  tiers: [{name: chat, slo: {ttft: TTFT, tpot: 100ms}, allowRequestTargets: true}]
"""
ENOUGH_BYTES = 1 << 20
BODY = {"model": "tiny", "prompt": [1] * 50, "max_tokens": 5, "ignore_eos": True}


both_paths = pytest.mark.parametrize("path", ["sidecar", "direct"])


class Replica(NamedTuple):
    sidecar: Process
    address: str
    http: str
    engine: str
    pages: str


@asynccontextmanager
async def replica(folder: Path, name: str, ttft: str, buffer_bytes: int, path: str) -> AsyncIterator[Replica]:
    """ttft, buffer_bytes: the tier's target and `bufferBytes`, as this replica reads them."""
    pool, telemetry = folder / f"{name}.yaml", folder / f"{name}.sock"
    own = {"TTFT": ttft, "BUFFER_BYTES": str(buffer_bytes), "PATH": path}
    pool.write_text(reduce(lambda text, word: text.replace(word, own[word]), own, POOL))
    direct = path == "direct"
    async with engine(pool, telemetry, "--gateway-requests" if direct else "--seed=0") as (_, at):
        flags = sidecar(pool, at, "--telemetry", telemetry, "--http-port", "0", "--metrics-port", "0")
        async with started("penstock_sidecar.main", *flags) as process:
            addresses = dict(ADDRESSES.findall(await logged(process, "ready")))
            await logged(process, "engine up")
            if direct:
                await answered(lambda: asks(at))
            yield Replica(
                process, addresses["address"], at if direct else addresses["http"], at, addresses["metrics"]
            )


@asynccontextmanager
async def behind_envoy(
    folder: Path, path: str, *ttfts: str, first_buffer_bytes: int = ENOUGH_BYTES
) -> AsyncIterator[tuple[Gateway, list[Replica]]]:
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(
                replica(folder, f"r{number}", ttft, ENOUGH_BYTES if number else first_buffer_bytes, path)
            )
            for number, ttft in enumerate(ttfts)
        ]
        known = [f"--replica=r{number}={each.address}" for number, each in enumerate(replicas)]
        ports = ("--ext-authz-port=0", "--admin-port=0")
        picker = started("penstock_picker.main", "-f", folder / "r1.yaml", *known, *ports)
        process = await stack.enter_async_context(picker)
        line = await logged(process, "ready")
        for _ in replicas:
            await logged(process, "replica")
        asks = ext_authz(dict(ADDRESSES.findall(line))["ext_authz"])
        front = gateway(folder, asks, [each.http for each in replicas])
        yield await stack.enter_async_context(front), replicas


async def asks(engine: str) -> bool:
    """Return whether an engine asks its sidecar about a gateway's requests."""
    async with httpx2.AsyncClient(base_url=f"http://{engine}", timeout=PATIENCE_S) as client:
        return (await client.get("/v1/models")).status_code == 200


async def complete(front: Gateway, /, **headers: str) -> tuple[int, dict[str, str]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = await front.http.post("/v1/completions", content=orjson.dumps(BODY), headers=named)
    return response.status_code, {
        **response.headers,
        "code": response.json().get("error", {}).get("code", ""),
    }


@both_paths
async def test_a_replica_that_rejects_is_followed_by_the_next_one(tmp_path: Path, path: str) -> None:
    async with behind_envoy(tmp_path, path, "0.001ms", "1s") as (front, replicas):
        answers = [await complete(front) for _ in range(4)]
        assert [status for status, _ in answers] == [200] * 4
        assert {headers["x-penstock-verdict"] for _, headers in answers} == {"admitted"}
        assert sorted(headers["x-penstock-hops"] for _, headers in answers)[-1] == "2"
        status, headers = await complete(front, x_slo_ttft_ms="0.001")
        assert (status, headers["code"]) == (429, "slo_unattainable")
        assert headers["x-should-retry"] == "false"
        replicas[0].sidecar.kill()
        await replicas[0].sidecar.wait()  # its connections are closed then
        assert (await complete(front))[0] == 200


@both_paths
async def test_a_replica_without_room_for_a_body_is_followed_by_the_next_one(
    tmp_path: Path, path: str
) -> None:
    async with behind_envoy(tmp_path, path, "1s", "1s", first_buffer_bytes=100) as (front, _):
        answers = [await complete(front) for _ in range(4)]
        assert [status for status, _ in answers] == [200] * 4
        assert sorted(headers["x-penstock-hops"] for _, headers in answers) == ["1", "1", "2", "2"]


@both_paths
async def test_a_disconnected_client_ends_its_work_in_the_engine(tmp_path: Path, path: str) -> None:
    async with behind_envoy(tmp_path, path, "1s", "1s") as (front, replicas):
        body = orjson.dumps(BODY | {"max_tokens": 4000, "stream": True})
        request = front.http.build_request("POST", "/v1/completions", content=body)
        stream = await front.http.send(request, stream=True)
        chunks = stream.aiter_bytes()  # held: collecting it would end the stream
        await anext(chunks)
        await answered(lambda: run(replicas, 1))
        await stream.aclose()
        await answered(lambda: run(replicas, 0))
        assert (await complete(front))[0] == 200


async def run(replicas: list[Replica], requests: int) -> bool:
    """Return whether their engines have this many requests."""
    return sum([await requests_of(each) for each in replicas]) == requests


async def requests_of(replica: Replica) -> int:
    async with httpx2.AsyncClient(base_url=f"http://{replica.engine}", timeout=PATIENCE_S) as engine:
        page = (await engine.get("/metrics")).text
    found = re.findall(r"^vllm:num_requests_(?:running|waiting)(?:{.*})? (\d+)", page, re.MULTILINE)
    assert found, page
    return sum(map(int, found))


@both_paths
async def test_both_paths_count_the_same_requests_and_answers(tmp_path: Path, path: str) -> None:
    async with behind_envoy(tmp_path, path, "1s", "1s") as (front, replicas):
        for stream in (False, True):
            body = orjson.dumps(BODY | {"stream": stream})
            response = await front.http.post("/v1/completions", content=body)
            assert response.status_code == 200 and response.headers["x-penstock-verdict"] == "admitted"
        counted = [await metrics_of(each) for each in replicas]
        total = {name: sum(each.get(name, 0) for each in counted) for name in counted[0]}
        assert total["penstock_replica_http_slo_judged_total"] == 2
        assert total["penstock_replica_http_slo_met_total"] == 2
        assert total["penstock_replica_http_ttft_seconds_count"] == 2
        assert total["penstock_replica_http_tpot_seconds_count"] == 2
        at_engine = total.get("penstock_replica_direct_answers_total", 0)
        assert at_engine == {"sidecar": 0, "direct": 2}[path]


async def metrics_of(replica: Replica) -> dict[str, float]:
    """The sums over all labels of a sidecar's metrics."""
    async with httpx2.AsyncClient(base_url=f"http://{replica.pages}", timeout=PATIENCE_S) as pages:
        page = (await pages.get("/metrics")).text
    found: dict[str, float] = {}
    for name, value in re.findall(r"^(\w+)(?:{.*})? (\S+)$", page, re.MULTILINE):
        found[name] = found.get(name, 0.0) + float(value)
    return found
