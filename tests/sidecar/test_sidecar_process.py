"""`penstock-sidecar` as a process, beside a real `penstock-engine`."""

import asyncio
import re
import signal
import socket
from pathlib import Path

import grpc
import httpx2
import pytest
from patience import PATIENCE_S
from patience import answered as asked_until
from penstock_proto import replica_pb2 as wire
from penstock_runtime.serving import listen
from replica_processes import engine, logged, ready, sidecar, started

from tests.sidecar.conftest import Router

POOL = """
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {name: test}
spec:
  model: {name: tiny}
  engine: {type: simulated, timeModel: llama-3-8b-h100, maxModelLen: 4096}
  scheduling: {policy: slos-serve}
  tiers: [{name: chat, slo: {ttft: 1s, tpot: 100ms}}, {name: batch, bestEffort: true}]
"""
TOKENS = 60
BODY = {"model": "tiny", "prompt": [1] * 50, "max_tokens": TOKENS, "stream": True, "ignore_eos": True}


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    file = tmp_path / "pool.yaml"
    file.write_text(POOL)
    return file


async def refused_to_start(*flags: str | Path) -> tuple[int, str]:
    """Return the exit code and the output."""
    async with started("penstock_sidecar.main", *flags) as process, asyncio.timeout(PATIENCE_S):
        _, output = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_a_sidecar_serves_requests_drains_on_a_signal_and_exits_with_0(
    pool: Path, socket_path: Path
) -> None:
    async with engine(pool, socket_path) as (_, at):
        flags = sidecar(pool, at, "--telemetry", socket_path, "--metrics-port", "0")
        async with started("penstock_sidecar.main", *flags) as process:
            line = await logged(process, "ready")
            address, metrics_at = re.findall(r"=(127\.0\.0\.1:\d+)", line)
            await logged(process, "engine up")
            async with Router(address) as router:
                await router.submit(1, BODY)
                finished = (await router.ended(1)).finished
                assert router.kinds(1)[0] == "admitted"
                assert (finished.prompt_tokens, finished.completion_tokens) == (50, TOKENS)
                assert router.data(1).endswith(b"data: [DONE]\n\n")
                async with httpx2.AsyncClient(base_url=f"http://{metrics_at}") as http:
                    reported = (await http.get("/metrics")).text
                    assert (await http.get("/ready")).status_code == 200
                    assert (await http.get("/nowhere")).status_code == 404
                assert 'verdicts_total{reason="",tier="chat",verdict="admitted"} 1.0' in reported
                assert re.search(r"telemetry_reports_total [1-9]", reported)
                assert "telemetry_lost_total 0.0" in reported
                await router.submit(2, BODY, tier="batch")
                await router.first(2)
                process.send_signal(signal.SIGTERM)
                await logged(process, "draining")
                await router.submit(3, BODY)
                assert (await router.ended(3)).rejected.reason == wire.REASON_DRAINING
                assert (await router.ended(2)).finished.completion_tokens == TOKENS
                assert await router.call.code() is grpc.StatusCode.OK
            assert await process.wait() == 0
    assert not is_there(socket_path)


async def test_a_sidecar_recovers_from_an_engine_killed_under_load(pool: Path, socket_path: Path) -> None:
    async with engine(pool, socket_path) as (first, at):
        flags = sidecar(pool, at, "--telemetry", socket_path)
        async with started("penstock_sidecar.main", *flags) as process:
            address = await ready(process)
            await logged(process, "engine up")
            async with Router(address) as router:
                for id in range(20):
                    await router.submit(id, BODY | {"max_tokens": 2000})
                for id in range(20):
                    await router.first(id)
                first.kill()
                for id in range(20):
                    assert (await router.ended(id)).failed.failure == wire.FAILURE_ENGINE_LOST
                await logged(process, "engine down")
                async with engine(pool, socket_path, port=at.rpartition(":")[2]):
                    await logged(process, "engine up")
                    await router.submit(99, BODY)
                    assert (await router.ended(99)).finished.completion_tokens == TOKENS


async def test_a_failed_start_prints_one_line(pool: Path, tmp_path: Path, socket_path: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = sidecar(pool, "127.0.0.1:1", "--listen", where)
        assert await refused_to_start(*flags) == (1, f"cannot listen on {where}: port taken\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(socket_path))
        code, output = await refused_to_start(*sidecar(pool, "127.0.0.1:1", "--telemetry", socket_path))
        assert (code, output) == (1, f"cannot receive telemetry at {socket_path}: taken\n")
    bad = tmp_path / "bad.yaml"
    bad.write_text(POOL.replace("100ms", '"50"'))
    code, output = await refused_to_start(*sidecar(bad, "127.0.0.1:1"))
    assert (code, output.count("\n")) == (2, 1)
    assert output.startswith(f"{bad}: spec.tiers[0].slo.tpot:")


async def test_without_an_engine_a_sidecar_runs_and_reports_that(pool: Path) -> None:
    with listen("127.0.0.1", 0) as free:
        nowhere = f"127.0.0.1:{free.getsockname()[1]}"
    async with started("penstock_sidecar.main", *sidecar(pool, nowhere)) as process:
        async with Router(await ready(process)) as router:
            await router.submit(1, BODY)
            assert (await router.ended(1)).rejected.reason == wire.REASON_ENGINE_DOWN
            assert not (await router.stub.Describe(wire.DescribeRequest())).engine_ready
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


def is_there(path: Path) -> bool:
    return path.exists()


TIER_FIGURES = re.compile(
    r"^penstock_(?:router|replica_http)_"
    r"((?:requests|hops|ttft_seconds|tpot_seconds|e2e_seconds|slo_\w+|untimed_answers|refused)"
    r"_(?:total|count)(?:{.*})?) ([\d.]+)$",
    re.MULTILINE,
)


async def tier_figures(url: str) -> dict[str, float]:
    """Return a process's counters by tier, without its name and without times."""
    async with httpx2.AsyncClient() as http:
        page = (await http.get(url)).text
    return {name: float(value) for name, value in TIER_FIGURES.findall(page)}


TRAFFIC: list[tuple[dict[str, object], dict[str, str], int]] = [
    (BODY, {}, 200),
    ({**BODY, "stream": False}, {}, 200),
    ({**BODY, "stream": False, "max_tokens": 1}, {}, 200),
    (BODY, {"x-penstock-tier": "batch"}, 200),
    (BODY, {"x-slo-ttft-ms": "0.001"}, 429),
    ({**BODY, "prompt": [1] * 5000}, {}, 400),
    (BODY, {"x-penstock-tier": "gold"}, 400),
]


@pytest.mark.parametrize("path", ["sidecar", "direct"])
async def test_figures_of_tiers_are_equal_over_http_and_through_a_router(
    path: str, pool: Path, socket_path: Path
) -> None:
    write_with_path(pool, path, "  routing: {backup: reject, maxHops: 1}\n")
    ports = ("--http-port", "0", "--metrics-port", "0")
    async with engine(pool, socket_path, "--gateway-requests") as (_, at):
        flags = sidecar(pool, at, "--telemetry", socket_path, *ports)
        async with started("penstock_sidecar.main", *flags) as process:
            line = await logged(process, "ready")
            reported = dict(re.findall(r"(\w+)=(127\.0\.0\.1:\d+)", line))
            await logged(process, "engine up")
            replica = ("--replica", f"r0={reported['address']}", "--port", "0", "--admin-port", "0")
            async with started("penstock_router.main", "-f", pool, *replica) as router:
                fronts = dict(re.findall(r"(\w+)=(127\.0\.0\.1:\d+)", await logged(router, "ready")))
                await in_service(f"http://{fronts['address']}")
                await answered(f"http://{fronts['address']}", {})
                gateway = reported["http"] if path == "sidecar" else await asking(at)
                await answered(f"http://{gateway}", {"x-penstock-max-hops": "0"})
                of_router = await tier_figures(f"http://{fronts['admin']}/metrics")
                of_replica = await tier_figures(f"http://{reported['metrics']}/metrics")
    assert of_router == of_replica
    assert of_router['slo_met_total{tier="chat"}'] == 3
    assert of_router['slo_missed_total{tier="chat",why="rejected"}'] == 1
    assert of_router['ttft_seconds_count{tier="chat"}'] == 3


def write_with_path(pool: Path, path: str, more: str = "") -> None:
    """Write the pool with this `answerPath`. more: further lines of its spec."""
    text = POOL.replace("maxModelLen: 4096", f"maxModelLen: 4096, answerPath: {path}")
    pool.write_text(text.replace("tpot: 100ms}}", "tpot: 100ms}, allowRequestTargets: true}") + more)


async def asking(engine: str) -> str:
    """Wait until an engine asks its sidecar about gateways' requests. Return its address."""
    async with httpx2.AsyncClient(base_url=f"http://{engine}", timeout=60) as gateway:

        async def asks() -> bool:
            return (await gateway.get("/v1/models")).status_code == 200

        await asked_until(asks, "the engine asks its sidecar")
    return engine


async def in_service(router: str) -> None:
    async with httpx2.AsyncClient(base_url=router) as client:

        async def is_ready() -> bool:
            return (await client.get("/ready")).status_code == 200

        await asked_until(is_ready, "the router has its replica in service")


async def answered(url: str, headers: dict[str, str]) -> None:
    """Send the traffic. Without headers, through a router; a gateway's picker has resolved the tier."""
    async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
        for body, own, status in TRAFFIC:
            tier = {"x-penstock-tier": "chat", **own} if headers else own
            response = await client.post("/v1/completions", json=body, headers={**headers, **tier})
            assert response.status_code == status, response.text


async def test_a_sidecar_reports_its_http_port_and_sends_gateways_to_others_while_draining(
    pool: Path, socket_path: Path
) -> None:
    async with engine(pool, socket_path) as (_, at):
        flags = sidecar(pool, at, "--telemetry", socket_path, "--http-port", "0")
        async with started("penstock_sidecar.main", *flags) as process:
            reported = dict(re.findall(r"(\w+)=(127\.0\.0\.1:\d+)", await logged(process, "ready")))
            await logged(process, "engine up")
            async with (
                Router(reported["address"]) as router,
                httpx2.AsyncClient(base_url=f"http://{reported['http']}", timeout=60) as gateway,
            ):
                described = await router.stub.Describe(wire.DescribeRequest())
                assert f"127.0.0.1:{described.http_port}" == reported["http"]
                async with gateway.stream("POST", "/v1/completions", json=BODY) as streaming:
                    process.send_signal(signal.SIGTERM)
                    await logged(process, "draining")
                    refused = await gateway.post("/v1/completions", json=BODY)
                    assert refused.headers["x-penstock-rejected"] == "1"
                    assert refused.headers["connection"] == "close"
                    text = (await streaming.aread()).decode()
            assert text.endswith("data: [DONE]\n\n")
            assert await process.wait() == 0
            assert not is_there(socket_path), "no engine takes it for one that is read"


async def test_a_sidecar_without_an_http_port_reports_none_to_routers(pool: Path, socket_path: Path) -> None:
    async with (
        engine(pool, socket_path) as (_, at),
        started("penstock_sidecar.main", *sidecar(pool, at, "--telemetry", socket_path)) as process,
    ):
        line = await logged(process, "ready")
        assert "http=none" in line
        async with Router(re.findall(r"address=(127\.0\.0\.1:\d+)", line)[0]) as router:
            assert (await router.stub.Describe(wire.DescribeRequest())).http_port == 0


@pytest.mark.parametrize("path", ["sidecar", "direct"])
async def test_gateways_are_sent_to_the_engine_while_it_asks(
    path: str, pool: Path, socket_path: Path
) -> None:
    write_with_path(pool, path)
    async with engine(pool, socket_path, "--gateway-requests") as (first, at):
        flags = sidecar(pool, at, "--telemetry", socket_path, "--http-port", "0")
        async with started("penstock_sidecar.main", *flags) as process:
            reported = dict(re.findall(r"(\w+)=(127\.0\.0\.1:\d+)", await logged(process, "ready")))
            await logged(process, "engine up")
            async with Router(reported["address"]) as router:

                async def named(address: str) -> bool:
                    reply = await router.stub.Describe(wire.DescribeRequest())
                    return f"127.0.0.1:{reply.http_port}" == address

                await asked_until(lambda: named(at if path == "direct" else reported["http"]))
                first.kill()
                await asked_until(lambda: named(reported["http"]))


async def test_a_drained_replica_ends_with_the_answers_that_its_engine_writes(
    pool: Path, socket_path: Path
) -> None:
    write_with_path(pool, "direct")
    async with engine(pool, socket_path, "--gateway-requests") as (_, at):
        flags = sidecar(pool, at, "--telemetry", socket_path, "--http-port", "0")
        async with (
            started("penstock_sidecar.main", *flags) as process,
            httpx2.AsyncClient(base_url=f"http://{at}", timeout=60) as gateway,
        ):
            await logged(process, "engine up")
            await asking(at)
            async with gateway.stream("POST", "/v1/completions", json=BODY) as streaming:
                process.send_signal(signal.SIGTERM)
                await logged(process, "draining")
                refused = await gateway.post("/v1/completions", json=BODY)
                assert refused.headers["x-penstock-rejected"] == "1"
                text = (await streaming.aread()).decode()
            assert text.endswith("data: [DONE]\n\n")
            assert await process.wait() == 0
            assert "unfinished=0" in await logged(process, "stopped")
