"""A sidecar process in front of an engine of type `openai`: a simulated one with vLLM's policy."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import httpx2
from replica_processes import logged, ready, started

from tests.sidecar.conftest import Router

POOL = """
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {{name: test}}
spec:
  model: {{name: tiny}}
  engine: {{type: {type}, timeModel: llama-3-8b-h100, kvCacheTokens: 40000}}
  scheduling: {{policy: {policy}, maxRunning: {running}}}
  tiers: [{{name: chat, slo: {{ttft: 30s, tpot: 1s}}}}, {{name: batch, bestEffort: true}}]
"""


def pool(folder: Path, **output: object) -> Path:
    file = folder / f"{output['type']}.yaml"
    file.write_text(POOL.format(**output))
    return file


def body(tokens: int, prompt: int = 50) -> dict[str, object]:
    return {"model": "tiny", "prompt": [1] * prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}


async def test_the_policys_order_applies_before_an_engine_without_one(tmp_path: Path) -> None:
    """Best effort that came first waits for admitted requests in the sidecar; none waits in the engine."""
    theirs = pool(tmp_path, type="simulated", policy="vllm", running=64)
    ours = pool(tmp_path, type="openai", policy="annealing", running=2)
    async with started("penstock_simulator.main", "-f", theirs, "--port", "0") as engine:
        at = await ready(engine)
        flags: list[str | Path] = [
            "-f",
            ours,
            "--name",
            "r0",
            "--listen",
            "127.0.0.1:0",
            "--engine",
            f"http://{at}",
        ]
        async with started("penstock_sidecar.main", *flags, "--metrics-port", "0") as sidecar:
            line = await logged(sidecar, "ready")
            address, metrics = re.findall(r"=(127\.0\.0\.1:\d+)", line)
            await logged(sidecar, "engine up")
            async with Router(address) as router, httpx2.AsyncClient() as http:
                for id, tokens in ((1, 300), (2, 600)):
                    await router.submit(id, body(tokens))
                    await until_output(router, id)
                await router.submit(3, body(5), tier="batch")
                await router.submit(4, body(5))
                assert (await router.first(3)).HasField("best_effort")
                assert (await router.first(4)).HasField("admitted")
                reported = (await http.get(f"http://{metrics}/metrics")).text
                assert "penstock_replica_engine_slots 2.0" in reported
                assert await most_inside(http, at, lambda: all_ended(router)) == 2
                assert began(router, 4) < began(router, 3)
                usage = [(await router.ended(id)).finished.completion_tokens for id in (1, 2, 3, 4)]
                assert usage == [300, 600, 5, 5]
                assert not any(b'"usage"' in router.data(id) for id in (1, 2, 3, 4))


async def most_inside(http: httpx2.AsyncClient, engine: str, over: Callable[[], bool]) -> float:
    """Requests that the engine has at once, running or waiting, until it is over."""
    most = 0.0
    async with asyncio.timeout(60):
        while not over():
            page = (await http.get(f"http://{engine}/metrics")).text
            counts = re.findall(r"^vllm:num_requests_(?:running|waiting)\S* ([0-9.]+)", page, re.MULTILINE)
            most = max(most, sum(map(float, counts)))
            await asyncio.sleep(0.01)
    return most


def all_ended(router: Router) -> bool:
    return all("finished" in router.kinds(id) for id in (1, 2, 3, 4))


async def until_output(router: Router, id: int) -> None:
    async with asyncio.timeout(60):
        while "output" not in router.kinds(id):  # noqa: ASYNC110 - the condition is another task's plain state
            await asyncio.sleep(0.005)


def began(router: Router, id: int) -> int:
    """Which of all outputs was its first."""
    outputs = [event.id for frame in router.frames for event in frame.events if event.HasField("output")]
    return outputs.index(id)
