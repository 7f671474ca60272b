"""Every policy serves, live: real processes, concurrent streams, a drafter that is right more often than not.

One router is in front of replicas that each have a policy of their own, which is no pool that a user
would want, and needs the fewest processes.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live.fork_server import ForkServer
from live.open_pool import OpenPool
from live.pool import LivePool
from live.pool_file import write_pool
from live.process import Process
from penstock_core.policies import POLICIES

STREAMS = 6
"""Concurrent requests for each replica, of every tier there is."""

TOKENS = 24

TIERS: list[dict[str, Any]] = [
    {"name": "chat", "slo": {"ttft": "20s", "tpot": "500ms"}},
    {"name": "report", "slo": {"e2e": "60s"}},
    {"name": "batch", "bestEffort": True},
]
METRICS = (
    "penstock_engine_policy_failures_total",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:iteration_tokens_total_sum",
)
ENGINE = {"timeModel": "llama-3-8b-h100", "speculation": {"maxTokens": 3, "acceptance": 0.7}}


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    opened = ForkServer()
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture(scope="module")
def varied(fork_server: ForkServer, open_module_pool: OpenPool) -> LivePool:
    """A replica for every policy, in their order."""
    each = [{"scheduling": {"policy": policy}} for policy in POLICIES]
    return open_module_pool(len(POLICIES), each=each, start=fork_server, engine=ENGINE, tiers=TIERS)


async def served(pool: LivePool) -> list[tuple[str, int]]:
    """Return the replica and the reported length of each of many concurrent streams."""
    async with pool.async_client() as client:

        async def one(number: int) -> tuple[str, int]:
            stream = await client.completions.create(
                model=pool.model,
                prompt=[1 + number] * (50 + 97 * number),
                max_tokens=TOKENS,
                stream=True,
                stream_options={"include_usage": True},
                extra_headers={"x-penstock-tier": TIERS[number % len(TIERS)]["name"]},
                extra_body={"ignore_eos": True},
            )
            usage = [chunk.usage.completion_tokens async for chunk in stream if chunk.usage]
            return stream.response.headers["x-penstock-replica"], usage[-1]

        return await asyncio.gather(*map(one, range(STREAMS * len(pool.replicas))))


@pytest.fixture(scope="module")
def answers(varied: LivePool) -> list[tuple[str, int]]:
    """Return the outcomes of concurrent streams to all replicas."""
    return asyncio.run(served(varied))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_streams_that_arrive_together(
    policy: str, varied: LivePool, answers: list[tuple[str, int]]
) -> None:
    replica = varied.replicas[list(POLICIES).index(policy)]
    assert [tokens for name, tokens in answers if name == replica] == [TOKENS] * STREAMS
    metrics = {name: varied.engine_value(replica, name) for name in METRICS}
    assert metrics["penstock_engine_policy_failures_total"] == 0, "no step was left to the fallback"
    assert metrics["vllm:generation_tokens_total"] == STREAMS * TOKENS
    # each prompt and each of its later tokens once; what is more are drafts
    undrafted = metrics["vllm:prompt_tokens_total"] + STREAMS * (TOKENS - 1)
    assert metrics["vllm:iteration_tokens_total_sum"] > undrafted


@pytest.mark.parametrize("name", ["distserve", "vllm-real"])
def test_a_policy_for_simulations_only_is_refused_in_one_line(
    name: str, fork_server: ForkServer, tmp_path: Path
) -> None:
    file = write_pool(tmp_path / "pool.yaml", scheduling={"policy": name})
    flags = ["-f", str(file)]
    for start, command in ((Process, ["penstock", "up", *flags]), (fork_server, ["penstock-engine", *flags])):
        process = start(command[0], command, tmp_path / f"{command[0]}.log")
        assert process.exit_code() == 2
        (line,) = process.printed_text.strip().splitlines()
        assert f'pool.yaml: spec.scheduling.policy: "{name}" is not a policy of a replica: ' in line
