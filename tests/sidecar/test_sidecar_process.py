"""`penstock-sidecar` as a process, beside a real `penstock-engine`."""

import asyncio
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import httpx2
import pytest
from patience import PATIENCE_S
from penstock_proto import replica_pb2 as wire
from penstock_runtime.serving import listen

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


@asynccontextmanager
async def started(module: str, *flags: str | Path) -> AsyncIterator[Process]:
    command = [sys.executable, "-m", module, *map(str, flags)]
    process = await asyncio.create_subprocess_exec(*command, stderr=PIPE, stdout=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def logged(process: Process, event: str) -> str:
    """The first line of this event; lines before it are passed over."""
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        while line := (await process.stderr.readline()).decode():
            if re.search(rf'event="?{event}', line):
                return line
    raise AssertionError(f"the process ended before it logged {event}")


async def ready(process: Process, field: str = "address") -> str:
    found = re.search(rf"\b{field}=(127\.0\.0\.1:\d+)", await logged(process, "ready"))
    assert found is not None
    return found[1]


@asynccontextmanager
async def engine(pool: Path, socket_path: Path, port: str = "0") -> AsyncIterator[tuple[Process, str]]:
    flags = ("-f", pool, "--port", port, "--telemetry", socket_path)
    async with started("penstock_simulator.main", *flags) as process:
        yield process, await ready(process)


def sidecar(pool: Path, address: str, *more: str | Path) -> list[str | Path]:
    return ["-f", pool, "--name", "r0", "--listen", "127.0.0.1:0", "--engine", f"http://{address}", *more]


async def refused_to_start(*flags: str | Path) -> tuple[int, str]:
    """Exit code and what it said."""
    async with started("penstock_sidecar.main", *flags) as process, asyncio.timeout(PATIENCE_S):
        _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_it_carries_requests_drains_on_a_signal_and_exits_clean(pool: Path, socket_path: Path) -> None:
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
                    told = (await http.get("/metrics")).text
                    assert (await http.get("/ready")).status_code == 200
                    assert (await http.get("/nowhere")).status_code == 404
                assert 'verdicts_total{reason="",tier="chat",verdict="admitted"} 1.0' in told
                assert re.search(r"telemetry_reports_total [1-9]", told)
                assert "telemetry_lost_total 0.0" in told
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


async def test_an_engine_killed_under_load_comes_back_by_itself(pool: Path, socket_path: Path) -> None:
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
                async with engine(pool, socket_path, at.rpartition(":")[2]):
                    await logged(process, "engine up")
                    await router.submit(99, BODY)
                    assert (await router.ended(99)).finished.completion_tokens == TOKENS


async def test_what_hinders_its_start_is_one_line(pool: Path, tmp_path: Path, socket_path: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = sidecar(pool, "127.0.0.1:1", "--listen", where)
        assert await refused_to_start(*flags) == (1, f"cannot listen on {where}: port taken\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(socket_path))
        code, said = await refused_to_start(*sidecar(pool, "127.0.0.1:1", "--telemetry", socket_path))
        assert (code, said) == (1, f"cannot receive telemetry at {socket_path}: taken\n")
    bad = tmp_path / "bad.yaml"
    bad.write_text(POOL.replace("100ms", '"50"'))
    code, said = await refused_to_start(*sidecar(bad, "127.0.0.1:1"))
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith(f"{bad}: spec.tiers[0].slo.tpot:")


async def test_without_an_engine_it_serves_and_says_so(pool: Path) -> None:
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
