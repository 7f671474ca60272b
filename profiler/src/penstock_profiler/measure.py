"""A probe, asked and timed: what one iteration of that kind takes.

A prefill is timed from its request to the first token. That way is longer than the iteration: HTTP,
tokenization, a place in the engine's queue. What it takes beside is measured once (`way_s`), by two
iterations of one token each of which only one is seen through it, and taken off every prefill.

Decodes are timed by the gaps between tokens, while all of them decode: from when the last has begun until
each has brought two dozen more. What counts is the median gap, of a few tokens each, so that neither a stall
nor two tokens that came in one packet say anything. Where a drafter works, an iteration brings a request one
token and what was accepted; so there are as many iterations of a request as tokens that were not accepted
drafts, and what counts is the mean.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from statistics import median
from time import perf_counter

from penstock_core.time_model import BatchWork, chunk_work
from penstock_core.time_model_fit import Point

from penstock_profiler.engine import Drafts, Engine, EngineError, Seen, Stream
from penstock_profiler.plan import ANSWER_TOKENS, Decodes, Prefill, Probe

WINDOW_TOKENS = 24
"""Of each request, over which decodes are timed."""

GAP_TOKENS = 4
"""From one that came to the one whose coming is timed after it."""

PROBE_TIMEOUT_S = 60.0
LOOK_S = 0.002
"""How often it is looked whether enough has come; times are taken where tokens arrive, not here."""


async def measured(engine: Engine, probe: Probe, way_s: float, random: Random) -> Point | None:
    """What the probe's iteration computes and takes; None where no iteration was what was asked for.

    Raises EngineError.
    """
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            if isinstance(probe, Prefill):
                return await _prefill(engine, probe, way_s, random)
            return await _decodes(engine, probe, random)
    except TimeoutError:
        raise EngineError(f"{engine.url}: {probe} took longer than {PROBE_TIMEOUT_S:g} s") from None


async def _prefill(engine: Engine, probe: Prefill, way_s: float, random: Random) -> Point | None:
    stream = Stream(0.0, probe.prompt_tokens)
    await engine.follow(stream, 1, random)
    if not stream.seen:
        return None
    tokens, took_s = stream.prompt_tokens, stream.seen[0].at_s - stream.sent_s - way_s
    return Point(BatchWork(tokens, 0, chunk_work(tokens, 0)), took_s) if took_s > 0 else None


async def _decodes(engine: Engine, probe: Decodes, random: Random) -> Point | None:
    async with _decoding(engine, probe, random) as decoding:
        if not await decoding.reach(1):
            return None
        began_s, before = perf_counter(), await engine.drafts()
        started = decoding.now()
        if not await decoding.reach(max(seen.tokens for seen in started) + WINDOW_TOKENS):
            return None
        windows, after = decoding.since(started), await engine.drafts()
    if min(window[-1].at_s for window in windows) <= began_s:
        return None
    context = sum(stream.prompt_tokens for stream in decoding.streams)
    context += sum(window[0].tokens + window[-1].tokens for window in windows) // 2
    drafts = _between(before, after)
    if drafts.drafted:
        tokens = sum(window[-1].tokens - window[0].tokens for window in windows)
        gap_s = median(_between_ends_s(window) for window in windows)
        return speculated(probe.requests, context, gap_s, tokens, drafts)
    gap_s = median(gap_s for window in windows for gap_s in gaps_s(window))
    return Point(BatchWork(probe.requests, context), gap_s)


def gaps_s(window: Sequence[Seen]) -> list[float]:
    """Seconds a token from each one seen to the next that came `GAP_TOKENS` after it; at least one."""
    found, later = [], 0
    for one in window:
        while later < len(window) and window[later].tokens < one.tokens + GAP_TOKENS:
            later += 1
        if later == len(window):
            break
        found.append((window[later].at_s - one.at_s) / (window[later].tokens - one.tokens))
    return found or [_between_ends_s(window)]


def _between_ends_s(window: Sequence[Seen]) -> float:
    return (window[-1].at_s - window[0].at_s) / (window[-1].tokens - window[0].tokens)


def speculated(requests: int, context: int, gap_s: float, tokens: int, drafts: Drafts) -> Point:
    """An iteration of decodes. gap_s: between two tokens of a request. tokens: that came, of all requests."""
    iterations = max(tokens - drafts.accepted, 1)  # of one request each
    drafted = drafts.drafted / iterations
    work = BatchWork(round(requests * (1 + drafted)), context, 0.0, round(drafted))
    return Point(work, gap_s * tokens / iterations)


def _between(before: Drafts, after: Drafts) -> Drafts:
    return Drafts(after.drafted - before.drafted, after.accepted - before.accepted)


@dataclass(frozen=True, slots=True)
class _Decoding:
    """Requests under way together."""

    streams: Sequence[Stream]
    tasks: Sequence["asyncio.Task[None]"]

    def now(self) -> list[Seen]:
        """The last that each has brought."""
        return [stream.seen[-1] for stream in self.streams]

    def since(self, started: Sequence[Seen]) -> list[list[Seen]]:
        """What each has brought from then on, the last before included."""
        return [
            [seen for seen in stream.seen if seen.tokens >= start.tokens]
            for stream, start in zip(self.streams, started, strict=True)
        ]

    async def reach(self, tokens: int) -> bool:
        """Wait until each has brought so many. False where one ends before that. Raises EngineError."""
        while any(not stream.seen or stream.seen[-1].tokens < tokens for stream in self.streams):
            ended = [task for task in self.tasks if task.done()]
            for task in ended:
                task.result()
            if ended:
                return False
            await asyncio.sleep(LOOK_S)
        return True


@asynccontextmanager
async def _decoding(engine: Engine, probe: Decodes, random: Random) -> AsyncIterator[_Decoding]:
    """All requests sent; what is left of them is cancelled at the end of the block."""
    streams = [Stream(0.0, probe.prompt_tokens) for _ in range(probe.requests)]
    tasks = [asyncio.create_task(engine.follow(stream, ANSWER_TOKENS, random)) for stream in streams]
    try:
        yield _Decoding(streams, tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
