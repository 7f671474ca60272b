"""A probe, asked and timed: what one iteration of that kind takes.

A prefill is timed by what it does to a request that decodes beside it: the one gap between two of that
request's tokens that the prompt's iteration made long. Nothing that a prompt meets on its way to the engine
is in that gap. An engine that does not mix prompts and decodes is timed from request to first token, less
what the way takes (`way_s`): that is known only as well as the machine is quiet.

Decodes are timed by the gaps between tokens, while all of them decode: from when the last has begun until
each has brought a dozen more. What counts is the median gap, of a few tokens each, so that neither a stall
nor two tokens that came in one packet say anything. Where a drafter works, an iteration brings a request one
token and what was accepted; so there are as many iterations of a request as tokens that were not accepted
drafts, and what counts is the mean.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from penstock_core.timing.fit import Point
from penstock_core.timing.time_model import BatchWork, chunk_work

from penstock_profiler.decoding import Decoding, decoding
from penstock_profiler.engine import Drafts, Engine, EngineError, Seen, Stream
from penstock_profiler.plan import ANSWER_TOKENS, BESIDE_TOKENS, Decodes, Prefill, Probe

WINDOW_TOKENS = 16
"""Of each request, over which decodes are timed."""

GAP_TOKENS = 4
"""From one that came to the one whose coming is timed after it."""

WARM_TOKENS, AFTER_TOKENS = 4, 2
"""That the request beside a prompt has brought before it is sent, and brings after its first token."""

MOST_ON_THE_WAY = 3
"""Gaps of a decode that a prompt may take, beside its usual way, until its iteration begins."""

PROBE_TIMEOUT_S = 60.0
"""After which an engine is stuck: probes take seconds."""


@dataclass(frozen=True, slots=True)
class Ways:
    """How an engine is to be timed.

    way_s: what a request takes on its way, beside the engine's iterations.
    mixes: whether a prompt and a decode go into one iteration.
    """

    way_s: float
    mixes: bool


async def measured(engine: Engine, probe: Probe, ways: Ways, random: Random) -> Point | None:
    """What the probe's iteration computes and takes; None where no iteration was what was asked for.

    Raises EngineError.
    """
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            if isinstance(probe, Decodes):
                return await _decodes(engine, probe, random)
            if ways.mixes and probe.prompt_tokens > 1:
                return await prefill_beside(engine, probe, ways.way_s, random)
            return await _prefill(engine, probe, ways.way_s, random)
    except TimeoutError:
        raise EngineError(f"{engine.url}: {probe} took longer than {PROBE_TIMEOUT_S:g} s") from None


async def _prefill(engine: Engine, probe: Prefill, way_s: float, random: Random) -> Point | None:
    stream = Stream(probe.prompt_tokens)
    await engine.follow(stream, 1, random)
    if not stream.seen:
        return None
    tokens, took_s = stream.prompt_tokens, stream.seen[0].at_s - stream.sent_s - way_s
    return Point(BatchWork(tokens, 0, chunk_work(tokens, 0)), took_s) if took_s > 0 else None


async def prefill_beside(engine: Engine, probe: Prefill, way_s: float, random: Random) -> Point | None:
    """A prompt and one decode, together as many tokens as the probe says."""
    async with decoding(engine, 1, 1, BESIDE_TOKENS, random) as beside:
        if not await beside.reach(WARM_TOKENS):
            return None
        prompt = Stream(probe.prompt_tokens - 1)
        await engine.follow(prompt, 1, random)
        if not prompt.seen or not await beside.reach(beside.now()[0].tokens + AFTER_TOKENS):
            return None
    return lengthened(beside.streams[0], prompt, way_s)


def lengthened(beside: Stream, prompt: Stream, way_s: float) -> Point | None:
    """The iteration that brought the prompt's first token: the gap of the other that ends with it.

    None where no gap ends with it, or one that had begun long after the prompt must have been there: then it
    was only the prompt's last.
    """
    first_s = prompt.seen[0].at_s
    at = min(range(len(beside.seen)), key=lambda at: abs(beside.seen[at].at_s - first_s))
    before, after = beside.seen[at - 1], beside.seen[at]
    usual_s = median(gaps_s(beside.seen[:at])) if at > 1 else 0.0
    latest_s = prompt.sent_s + way_s + MOST_ON_THE_WAY * usual_s
    together = abs(after.at_s - first_s) <= usual_s and after.tokens == before.tokens + 1
    if not together or before.at_s > latest_s:
        return None
    tokens, context = prompt.prompt_tokens, beside.prompt_tokens + after.tokens
    return Point(BatchWork(tokens + 1, context, chunk_work(tokens, 0)), after.at_s - before.at_s)


async def _decodes(engine: Engine, probe: Decodes, random: Random) -> Point | None:
    async with decoding(engine, probe.requests, probe.prompt_tokens, ANSWER_TOKENS, random) as together:
        if not await together.reach(1):
            return None
        before = await engine.drafts()
        started = together.now()
        if not await together.reach(max(seen.tokens for seen in started) + WINDOW_TOKENS):
            return None
        drafts = _between(before, await engine.drafts())
    windows = together.since(started)
    context = context_in_the_middle(together, windows)
    if drafts.drafted:
        tokens = sum(window[-1].tokens - window[0].tokens for window in windows)
        gap_s = median(_between_ends_s(window) for window in windows)
        return speculated(probe.requests, context, gap_s, tokens, drafts)
    gap_s = median(gap_s for window in windows for gap_s in gaps_s(window))
    return Point(BatchWork(probe.requests, context), gap_s)


def context_in_the_middle(together: Decoding, windows: Sequence[Sequence[Seen]]) -> int:
    """Return the context of all requests in the middle of their windows, tokens."""
    prompts = sum(stream.prompt_tokens for stream in together.streams)
    return prompts + sum(window[0].tokens + window[-1].tokens for window in windows) // 2


def speculated(requests: int, context: int, gap_s: float, tokens: int, drafts: Drafts) -> Point:
    """An iteration of decodes. gap_s: between two tokens of a request. tokens: that came, of all requests."""
    iterations = max(tokens - drafts.accepted, 1)  # of one request each
    drafted = drafts.drafted / iterations
    work = BatchWork(round(requests * (1 + drafted)), context, 0.0, round(drafted))
    return Point(work, gap_s * tokens / iterations)


def gaps_s(window: Sequence[Seen]) -> list[float]:
    """Seconds a token from each one seen to the next that came `GAP_TOKENS` after it; at least one."""
    found = []
    for one in window:
        later = bisect_left(window, one.tokens + GAP_TOKENS, key=_tokens)
        if later == len(window):
            break
        found.append((window[later].at_s - one.at_s) / (window[later].tokens - one.tokens))
    return found or [_between_ends_s(window)]


def _tokens(seen: Seen) -> int:
    return seen.tokens


def _between_ends_s(window: Sequence[Seen]) -> float:
    return (window[-1].at_s - window[0].at_s) / (window[-1].tokens - window[0].tokens)


def _between(before: Drafts, after: Drafts) -> Drafts:
    return Drafts(after.drafted - before.drafted, after.accepted - before.accepted)
