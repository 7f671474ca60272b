"""A stream with a tight TPOT target while long prompts arrive: Penstock's steps beside vLLM's own.

One engine, one stream, prompts of 3,000 tokens at two thirds of its prefill capacity. vLLM is measured at its
default token budget and at smaller ones; its best is the one with the shortest gaps. The pool is reached
through a router that knows one replica, so that it has the same load on one engine. All are measured in turn,
several times, and the median counts, because other load on this machine affects all alike.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from statistics import fmean, median
from time import perf_counter
from typing import NamedTuple

import aiohttp
from unmodified.load import Planned, Seen, ask, session

from pool_on_vllm.servers import MODEL, router_of
from pool_on_vllm.steps.beginning import document, p99_gap_s
from pool_on_vllm.world import World

VERDICT = "x-penstock-verdict"
ROUNDS, PROMPTS = 3, 5
SPACING = 1.5
"""Between two prompts, in times that a lone one takes."""
LONE_S, ADMITTED_S = 2.0, 60.0
STREAM_TOKENS, WARM_TOKENS = 3500, 20
"""Most that it may bring, and how many it has brought before anything is measured."""
PACES, NOISES, LEAST_S = 8, 2, 0.05
"""What the stream asks for: so many times its pace, or so many times its p99 gap where it is alone, which
says how steady this machine is; at least so much."""
LONGER = 1.5
"""How much longer than the target the p99 gap may be: client and servers share this machine's cores."""
SHORTER = 1.5
"""How much shorter than with vLLM's default it has to be."""


class Round(NamedTuple):
    """Of one server: the stream's p99 gap, and the prompts' mean time to a first token."""

    gap_s: float
    ttft_s: float


def gaps_of_a_stream(world: World) -> str:
    """A stream meets its TPOT target while 3,000-token prompts arrive"""
    log = world.file("router-of-one.log")
    with router_of(world.replicas[:1], world.file("pool-best-effort.yaml"), log) as router:
        urls: dict[str, str] = {"penstock": router.url}
        urls |= {f"vllm {budget or 'default'}": url for budget, url in world.plain.items()}
        rounds: dict[str, list[Round]] = {name: [] for name in urls}
        alone_s = median(asyncio.run(_alone(router.url)) for _ in range(ROUNDS))
        target_s = max(PACES * world.pace_s, NOISES * alone_s, LEAST_S)
        for _ in range(ROUNDS):
            for name, url in urls.items():
                rounds[name].append(asyncio.run(_round(url, target_s, SPACING * world.prompt_s)))
    world.plain_running.close()  # they are no longer needed
    return _judged(world, {name: _median(of) for name, of in rounds.items()}, target_s, alone_s)


def _judged(world: World, found: dict[str, Round], target_s: float, alone_s: float) -> str:
    world.figures["gaps"] = {name: of._asdict() for name, of in found.items()} | {
        "target_s": target_s,
        "alone_s": alone_s,
    }
    ours, default = found["penstock"], found["vllm default"]
    best_name = min((name for name in found if name != "penstock"), key=lambda name: found[name].gap_s)
    best = found[best_name]
    output = (
        f"p99 gap {_ms(ours.gap_s)} (target {_ms(target_s)}, alone {_ms(alone_s)}); "
        f"{default.gap_s / ours.gap_s:.1f} times shorter than vLLM's default ({_ms(default.gap_s)}), "
        f"{best.gap_s / ours.gap_s:.1f} times {best_name}'s, its best ({_ms(best.gap_s)}); "
        f"prompts: {_ms(ours.ttft_s)}, {_ms(default.ttft_s)}, {_ms(best.ttft_s)}"
    )
    assert ours.gap_s <= LONGER * target_s, output
    assert default.gap_s >= SHORTER * ours.gap_s, output
    return output


async def _alone(url: str) -> float:
    """The stream's p99 gap where there is nothing else."""
    async with _stream(url, {}) as (_, seen, began_s):
        await asyncio.sleep(LONE_S)
        until_s = perf_counter() - began_s
    return p99_gap_s([at_s for at_s in seen.times_s if at_s <= until_s])


async def _round(url: str, target_s: float, spacing_s: float) -> Round:
    """The stream's gaps from the first prompt's arrival to the last one's first token."""
    async with _stream(url, {"x-slo-tpot-ms": f"{1e3 * target_s:.0f}"}) as (http, seen, began_s):
        from_s = perf_counter()

        async def prompt(number: int) -> Seen:
            due_s = from_s + number * spacing_s
            await asyncio.sleep(due_s - perf_counter())
            return await ask(http, url, MODEL, document(number), due_s)

        prompts = await asyncio.gather(*map(prompt, range(PROMPTS)))
        until_s = perf_counter()
    assert all(one.status == 200 and one.times_s for one in prompts), [one.status for one in prompts]
    meanwhile_s = [at_s for at_s in seen.times_s if from_s <= began_s + at_s <= until_s]
    return Round(p99_gap_s(meanwhile_s), fmean(one.ttft_s for one in prompts))


@asynccontextmanager
async def _stream(
    url: str, own: Mapping[str, str]
) -> AsyncIterator[tuple[aiohttp.ClientSession, Seen, float]]:
    """While it runs: a session for others, what is seen of it, and when it was sent.

    It is asked for again while it is not admitted: after a busy time an engine is planned as slow.
    """
    async with session() as http:
        async with asyncio.timeout(ADMITTED_S):
            stream, seen, began_s = await _begun(http, url, own)
            while seen.headers.get(VERDICT, "admitted") != "admitted":
                await _cancelled(stream)
                stream, seen, began_s = await _begun(http, url, own)
        try:
            yield http, seen, began_s
            assert not stream.done(), f"the stream ended too soon, after {len(seen.times_s)} tokens"
        finally:
            await _cancelled(stream)


async def _begun(
    http: aiohttp.ClientSession, url: str, own: Mapping[str, str]
) -> tuple[asyncio.Task[Seen], Seen, float]:
    """One that has brought some tokens: its task, what is seen of it, and when it was sent."""
    began_s, seen = perf_counter(), Seen("stream")
    requested = Planned(0, "stream", "x" * 50, STREAM_TOKENS)
    stream = asyncio.create_task(ask(http, url, MODEL, requested, began_s, into=seen, own=own))
    while len(seen.times_s) < WARM_TOKENS:
        assert not stream.done(), f"the stream ended after {len(seen.times_s)} tokens: {seen.status}"
        await asyncio.sleep(0.01)
    return stream, seen, began_s


async def _cancelled(stream: asyncio.Task[Seen]) -> None:
    stream.cancel()
    await asyncio.wait({stream})


def _median(rounds: Sequence[Round]) -> Round:
    return Round(median(one.gap_s for one in rounds), median(one.ttft_s for one in rounds))


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"
