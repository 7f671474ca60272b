"""A stream with a tight TPOT target while long prompts arrive: Penstock compared with vLLM's own scheduler.

The load is one stream and prompts of 3,000 tokens at two thirds of one engine's prefill capacity. vLLM is
measured with its default token budget and with smaller ones; its best is the one with the shortest gaps. The
pool is reached through a router with one replica, so that it too runs the load on one engine. All servers are
measured in turns, several times, and medians are compared, because other load on this machine affects all.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from statistics import fmean, median
from time import perf_counter
from typing import NamedTuple

import aiohttp
from unmodified.load import MeasuredOutcome, Planned, send, session

from pool_on_vllm.context import VllmContext
from pool_on_vllm.processes import MODEL, router_of
from pool_on_vllm.steps.startup import document, p99_gap_s

VERDICT = "x-penstock-verdict"
ROUNDS, PROMPTS = 3, 5
SPACING = 1.5
"""Time between two prompts, as a multiple of a single prompt's TTFT."""
LONE_S, ADMITTED_S = 2.0, 60.0
STREAM_TOKENS, WARM_TOKENS = 3500, 20
"""Longest answer of the stream, and its tokens before measurement begins."""
TPOT_FACTOR, GAP_FACTOR, MIN_TARGET_S = 8, 2, 0.05
"""The stream's TPOT target is the largest of: this multiple of a single stream's TPOT, this multiple of its
p99 gap without other load, and this minimum."""
MAX_TARGET_RATIO = 1.5
"""Permitted ratio of p99 gap to target: client and servers share this machine's cores."""
MIN_SPEEDUP = 1.5
"""Required ratio of vLLM's p99 gap, at its default budget, to Penstock's."""


class PromptRound(NamedTuple):
    """One measurement of a server: the stream's p99 gap, and the prompts' mean TTFT."""

    p99_gap_s: float
    ttft_s: float


def stream_gaps(context: VllmContext) -> str:
    """A stream meets its TPOT target while 3,000-token prompts arrive"""
    log = context.file("router-of-one.log")
    with router_of(context.replicas[:1], context.file("pool-best-effort.yaml"), log) as router:
        urls: dict[str, str] = {"penstock": router.url}
        urls |= {f"vllm {budget or 'default'}": url for budget, url in context.plain_urls.items()}
        rounds: dict[str, list[PromptRound]] = {name: [] for name in urls}
        alone_s = median(asyncio.run(_measure_alone(router.url)) for _ in range(ROUNDS))
        spacing_s = SPACING * context.long_prompt_ttft_s
        target_s = max(TPOT_FACTOR * context.tpot_s, GAP_FACTOR * alone_s, MIN_TARGET_S)
        for _ in range(ROUNDS):
            for name, url in urls.items():
                rounds[name].append(asyncio.run(_measure(url, target_s, spacing_s)))
    context.plain_servers.close()  # not needed by later steps
    return _check(context, {name: _median(of) for name, of in rounds.items()}, target_s, alone_s)


def _check(context: VllmContext, medians: dict[str, PromptRound], target_s: float, alone_s: float) -> str:
    context.figures["gaps"] = {name: of._asdict() for name, of in medians.items()} | {
        "target_s": target_s,
        "alone_s": alone_s,
    }
    ours, default = medians["penstock"], medians["vllm default"]
    baselines = {name: of.p99_gap_s for name, of in medians.items() if name != "penstock"}
    best_name = min(baselines, key=baselines.__getitem__)
    best = medians[best_name]
    output = (
        f"p99 gap {_ms(ours.p99_gap_s)} (target {_ms(target_s)}, alone {_ms(alone_s)}); "
        f"{default.p99_gap_s / ours.p99_gap_s:.1f} times shorter than with vLLM's default "
        f"({_ms(default.p99_gap_s)}), "
        f"{ours.p99_gap_s / best.p99_gap_s:.1f} times as long as with {best_name}, its best "
        f"({_ms(best.p99_gap_s)}); TTFT of prompts: "
        f"{_ms(ours.ttft_s)}, {_ms(default.ttft_s)}, {_ms(best.ttft_s)}"
    )
    assert ours.p99_gap_s <= MAX_TARGET_RATIO * target_s, output
    assert default.p99_gap_s >= MIN_SPEEDUP * ours.p99_gap_s, output
    return output


async def _measure_alone(url: str) -> float:
    """Return the stream's p99 gap without other load."""
    async with _stream(url, {}) as (_, outcome, started_s):
        await asyncio.sleep(LONE_S)
        until_s = perf_counter() - started_s
    return p99_gap_s([at_s for at_s in outcome.times_s if at_s <= until_s])


async def _measure(url: str, target_s: float, spacing_s: float) -> PromptRound:
    """Measure the stream from the first prompt's arrival to the last prompt's first token."""
    async with _stream(url, {"x-slo-tpot-ms": f"{1e3 * target_s:.0f}"}) as (http, outcome, started_s):
        from_s = perf_counter()

        async def prompt(number: int) -> MeasuredOutcome:
            due_s = from_s + number * spacing_s
            await asyncio.sleep(due_s - perf_counter())
            return await send(http, url, MODEL, document(number), due_s)

        prompts = await asyncio.gather(*map(prompt, range(PROMPTS)))
        until_s = perf_counter()
    assert all(one.status == 200 and one.times_s for one in prompts), [one.status for one in prompts]
    meanwhile_s = [at_s for at_s in outcome.times_s if from_s <= started_s + at_s <= until_s]
    return PromptRound(p99_gap_s(meanwhile_s), fmean(one.ttft_s for one in prompts))


@asynccontextmanager
async def _stream(
    url: str, own: Mapping[str, str]
) -> AsyncIterator[tuple[aiohttp.ClientSession, MeasuredOutcome, float]]:
    """Run the stream. Yields a session for other requests, the stream's record, and its send time.

    A stream that is not admitted is sent again: after a busy period the time model predicts slow iterations.
    """
    async with session() as http:
        async with asyncio.timeout(ADMITTED_S):
            stream, outcome, started_s = await _start_stream(http, url, own)
            while outcome.headers.get(VERDICT, "admitted") != "admitted":
                await _cancel(stream)
                stream, outcome, started_s = await _start_stream(http, url, own)
        try:
            yield http, outcome, started_s
            assert not stream.done(), f"the stream ended early, after {len(outcome.times_s)} tokens"
        finally:
            await _cancel(stream)


async def _start_stream(
    http: aiohttp.ClientSession, url: str, own: Mapping[str, str]
) -> tuple[asyncio.Task[MeasuredOutcome], MeasuredOutcome, float]:
    """Start a stream and wait for its first tokens. Returns its task, its record, and its send time."""
    started_s, outcome = perf_counter(), MeasuredOutcome("stream")
    planned = Planned(0, "stream", "x" * 50, STREAM_TOKENS)
    stream = asyncio.create_task(send(http, url, MODEL, planned, started_s, into=outcome, own=own))
    while len(outcome.times_s) < WARM_TOKENS:
        assert not stream.done(), f"the stream ended after {len(outcome.times_s)} tokens: {outcome.status}"
        await asyncio.sleep(0.01)
    return stream, outcome, started_s


async def _cancel(stream: asyncio.Task[MeasuredOutcome]) -> None:
    stream.cancel()
    await asyncio.wait({stream})


def _median(rounds: Sequence[PromptRound]) -> PromptRound:
    return PromptRound(median(one.p99_gap_s for one in rounds), median(one.ttft_s for one in rounds))


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"
