"""Start: vLLM's own servers, the machine's speed, a measured engine, a pool."""

import asyncio
import re
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from statistics import median, quantiles
from string import ascii_lowercase
from time import monotonic, perf_counter

from unmodified.load import Planned, ask, closed_loop, session
from unmodified.servers import make_model
from unmodified_engines import Targets, targets_of

from pool_on_vllm import pools
from pool_on_vllm.servers import MODEL, LocalPool, plain_vllm, profile
from pool_on_vllm.world import World

BUDGETS = (None, 512, 256, 128)
"""Of tokens a step, for vLLM's own scheduler: its default, and those that spare running streams."""
PROMPT_TOKENS, ANSWER_TOKENS = 3000, 500
CLIENTS, CAPACITY_S = 12, 10.0
PROFILE_S, PROFILE_TRIES = 25.0, 4
WORST_FIT = 30.0
"""Mean error of a time model in per cent, beyond which it says more of what else ran than of the engine."""
SLACK = 2.5
"""Of targets, beyond what suits an engine that has the machine to itself: here two share it."""


def plain_servers(world: World) -> str:
    """vLLM's own servers are up, to compare with"""
    world.model = make_model(world.results)
    opened = plain_vllm(world.model, BUDGETS, world.file("plain-vllm.log"))
    world.plain = world.plain_running.enter_context(opened)
    return f"without the plug-in, budgets of tokens a step: default, {', '.join(map(str, BUDGETS[1:]))}"


def pace_of_this_machine(world: World) -> str:
    """How fast one engine is here, which sets the targets"""
    url = world.plain[None]
    lone = asyncio.run(targets_of(url, MODEL))
    world.targets = {tier: Targets(SLACK * of.ttft_s, SLACK * of.tpot_s) for tier, of in lone.items()}
    world.capacity_rps = asyncio.run(closed_loop(url, MODEL, CLIENTS, CAPACITY_S))
    world.pace_s, world.gap_s, world.prompt_s = asyncio.run(_lone(url))
    targets = ", ".join(
        f"{tier} {pools.ms(of.ttft_s)} and {pools.ms(of.tpot_s)}" for tier, of in world.targets.items()
    )
    return (
        f"{1e3 * world.pace_s:.1f} ms a token, p99 {pools.ms(world.gap_s)}, "
        f"{pools.ms(world.prompt_s)} for {PROMPT_TOKENS} of a prompt, "
        f"{world.capacity_rps:.1f} requests/s; targets: {targets}"
    )


def profile_of_an_engine(world: World) -> str:
    """`penstock profile` fits a time model to one of them"""
    for _ in range(PROFILE_TRIES):
        output = profile(world.plain[None], world.file("measured.json"), PROFILE_S)
        world.file("profile.txt").write_text(output)
        found = re.search(r"R² .* mean error (\S+)%.*", output)
        assert found is not None, output
        if float(found.group(1)) <= WORST_FIT:
            return found.group()
    raise AssertionError(f"no time model fits this machine, which others use as well:\n{output}")


def pool_is_up(world: World) -> str:
    """`penstock up --engine vllm` brings two replicas into service"""
    return start(world, LocalPool(pools.roomy(world), world.model, 2, world.file("up.log")))


def start(world: World, pool: LocalPool) -> str:
    """Wait for it, and see to its end."""
    began_s = monotonic()
    world.pool = pool
    world.running.callback(pool.kill)
    world.replicas = pool.wait_ready()
    names = " and ".join(replica.name for replica in world.replicas)
    return f"{names} serve after {monotonic() - began_s:.0f} s"


async def _lone(url: str) -> tuple[float, float, float]:
    """A lone answer's time a token and p99 gap, and a lone long prompt's time to its first token."""
    async with session() as http:
        answer = await ask(http, url, MODEL, Planned(0, "chat", "x" * 50, ANSWER_TOKENS), perf_counter())
        long = [await ask(http, url, MODEL, document(n), perf_counter()) for n in range(3)]
    return answer.tpot_s, p99_gap_s(answer.times_s), median(one.ttft_s for one in long)


def p99_gap_s(times_s: Sequence[float]) -> float:
    """Of the moments at which tokens came. Raises AssertionError where they are too few."""
    gaps_s = [later - earlier for earlier, later in pairwise(times_s)]
    assert len(gaps_s) > 1, f"only {len(gaps_s)} gaps of a stream were seen"
    return quantiles(gaps_s, n=100, method="inclusive")[98]


def document(seed: int) -> Planned:
    """A long prompt of which one token is wanted."""
    letters = Random(seed).choices(ascii_lowercase, k=PROMPT_TOKENS)
    return Planned(0, "document", "".join(letters), 1)
