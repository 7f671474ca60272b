"""Starts vLLM's own servers, measures the machine's speed, profiles an engine, and starts a pool."""

import asyncio
import re
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from statistics import median, quantiles
from string import ascii_lowercase
from time import monotonic, perf_counter

from unmodified.load import Planned, closed_loop, send, session
from unmodified.servers import make_model
from unmodified_engines import TierTargets, targets_of

from pool_on_vllm import pools
from pool_on_vllm.context import VllmContext
from pool_on_vllm.processes import MODEL, LocalPool, plain_vllm, profile

BUDGETS = (None, 512, 256, 128)
"""Token budgets of a step for vLLM's own scheduler: its default, and smaller ones, which shorten gaps."""
PROMPT_TOKENS, ANSWER_TOKENS = 3000, 500
CLIENTS, CAPACITY_S = 12, 10.0
PROFILE_S, PROFILE_TRIES = 25.0, 4
WORST_FIT = 30.0
"""Largest accepted mean error of a time model, in per cent. Beyond it, other load disturbed the profile."""
SLACK = 2.5
"""Factor on the targets of a single engine, because two engines share the machine."""


def plain_servers(context: VllmContext) -> str:
    """vLLM's own servers start, for comparison"""
    context.model = make_model(context.results)
    opened = plain_vllm(context.model, BUDGETS, context.file("plain-vllm.log"))
    context.plain_urls = context.plain_servers.enter_context(opened)
    return f"without the plug-in, token budgets: default, {', '.join(map(str, BUDGETS[1:]))}"


def engine_speed(context: VllmContext) -> str:
    """The speed of one engine is measured and sets the targets"""
    url = context.plain_urls[None]
    single = asyncio.run(targets_of(url, MODEL))
    context.targets = {tier: TierTargets(SLACK * of.ttft_s, SLACK * of.tpot_s) for tier, of in single.items()}
    context.capacity_rps = asyncio.run(closed_loop(url, MODEL, CLIENTS, CAPACITY_S))
    context.tpot_s, context.p99_gap_s, context.long_prompt_ttft_s = asyncio.run(_measure_single_requests(url))
    targets = ", ".join(
        f"{tier} {pools.ms(of.ttft_s)} and {pools.ms(of.tpot_s)}" for tier, of in context.targets.items()
    )
    return (
        f"{1e3 * context.tpot_s:.1f} ms a token, p99 {pools.ms(context.p99_gap_s)}, "
        f"{pools.ms(context.long_prompt_ttft_s)} for a prompt of {PROMPT_TOKENS} tokens, "
        f"{context.capacity_rps:.1f} requests/s; targets: {targets}"
    )


def engine_profile(context: VllmContext) -> str:
    """`penstock profile` fits a time model to one of these servers"""
    for _ in range(PROFILE_TRIES):
        output = profile(context.plain_urls[None], context.file("measured.json"), PROFILE_S)
        context.file("profile.txt").write_text(output)
        found = re.search(r"R² .* mean error (\S+)%.*", output)
        assert found is not None, output
        if float(found.group(1)) <= WORST_FIT:
            return found.group()
    raise AssertionError(f"no time model fits; other processes may use this machine:\n{output}")


def start_pool(context: VllmContext) -> str:
    """`penstock up --engine vllm` starts two replicas"""
    return start(context, LocalPool(pools.large_memory(context), context.model, 2, context.file("up.log")))


def start(context: VllmContext, pool: LocalPool) -> str:
    """Wait until the pool is ready. It is stopped when the test ends."""
    started_s = monotonic()
    context.pool_or_none = pool
    context.running.callback(pool.kill)
    context.replicas = pool.wait_ready()
    names = " and ".join(replica.name for replica in context.replicas)
    return f"{names} ready after {monotonic() - started_s:.0f} s"


async def _measure_single_requests(url: str) -> tuple[float, float, float]:
    """Return a single stream's TPOT and p99 gap, and a single long prompt's TTFT."""
    async with session() as http:
        answer = await send(http, url, MODEL, Planned(0, "chat", "x" * 50, ANSWER_TOKENS), perf_counter())
        long = [await send(http, url, MODEL, document(n), perf_counter()) for n in range(3)]
    return answer.tpot_s, p99_gap_s(answer.times_s), median(one.ttft_s for one in long)


def p99_gap_s(times_s: Sequence[float]) -> float:
    """Return the p99 gap of token times. Raises AssertionError if they are too few."""
    gaps_s = [later - earlier for earlier, later in pairwise(times_s)]
    assert len(gaps_s) > 1, f"only {len(gaps_s)} gaps were measured"
    return quantiles(gaps_s, n=100, method="inclusive")[98]


def document(seed: int) -> Planned:
    """Return a request with a long prompt and one output token."""
    letters = Random(seed).choices(ascii_lowercase, k=PROMPT_TOKENS)
    return Planned(0, "document", "".join(letters), 1)
