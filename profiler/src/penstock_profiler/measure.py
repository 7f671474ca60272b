"""Measures the duration of one iteration of a probe.

A prefill is measured by its effect on a request that decodes concurrently: the inter-token gap of that
request that the prompt's iteration lengthened. The gap contains no network or queueing time. For an engine
that does not batch prefills with decodes, it is the time from request to first token, minus the overhead of a
request (`overhead_s`), which is less accurate on a noisy machine.

Decodes are measured by inter-token gaps while all of them decode: from the first token of the last request
until each has generated a dozen more. The median over gaps of a few tokens is robust against stalls and
coalesced packets. With speculation, an iteration generates one token and the accepted drafts, so a request
has as many iterations as tokens that were not accepted drafts, and the mean is used.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import median

from penstock_core.timing.fit import Point
from penstock_core.timing.time_model import BatchWork, chunk_work

from penstock_profiler.decoding import Decoding, decoding
from penstock_profiler.engine import CompletionStream, Drafts, EngineError, MeasuredEngine, TokenArrival
from penstock_profiler.plan import ANSWER_TOKENS, CONCURRENT_ANSWER_TOKENS, DecodeProbe, PrefillProbe, Probe

WINDOW_TOKENS = 16
"""Tokens of each request over which decodes are measured."""

GAP_TOKENS = 4
"""Tokens over which one gap is measured."""

WARM_TOKENS, AFTER_TOKENS = 4, 2
"""Tokens of the concurrent request before the prompt is sent, and after the prompt's first token."""

EARLIER_CHUNK = 0.5
"""Lengthening of an earlier gap, as a share of the prompt's, by which it was a chunk: chunks are not smaller
than the last one. A lengthening by less than a usual gap is noise."""

PROBE_TIMEOUT_S = 60.0
"""Timeout of a probe; probes take seconds."""


@dataclass(frozen=True, slots=True)
class TimingMethod:
    """How an engine is measured.

    overhead_s: overhead of a request outside of iterations, in seconds.
    mixes: whether it batches prefills with decodes.
    """

    overhead_s: float
    mixes: bool


async def measured(
    engine: MeasuredEngine, probe: Probe, method: TimingMethod, random: Random
) -> Point | None:
    """Return the work and duration of the probe's iteration; None if no iteration matched the probe.

    Raises EngineError.
    """
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            if isinstance(probe, DecodeProbe):
                return await _decodes(engine, probe, random)
            if method.mixes and probe.prompt_tokens > 1:
                return await mixed_prefill(engine, probe, random)
            return await _prefill(engine, probe, method.overhead_s, random)
    except TimeoutError:
        raise EngineError(f"{engine.url}: {probe} took longer than {PROBE_TIMEOUT_S:g} s") from None


async def _prefill(
    engine: MeasuredEngine, probe: PrefillProbe, overhead_s: float, random: Random
) -> Point | None:
    stream = CompletionStream(probe.prompt_tokens)
    await engine.follow(stream, 1, random)
    if not stream.arrivals:
        return None
    tokens, took_s = stream.prompt_tokens, stream.arrivals[0].at_s - stream.sent_s - overhead_s
    return Point(BatchWork(tokens, 0, chunk_work(tokens, 0)), took_s) if took_s > 0 else None


async def mixed_prefill(engine: MeasuredEngine, probe: PrefillProbe, random: Random) -> Point | None:
    """Measure a prefill with one concurrent decode. Both together have the probe's tokens."""
    async with decoding(engine, 1, 1, CONCURRENT_ANSWER_TOKENS, random) as beside:
        if not await beside.reach(WARM_TOKENS):
            return None
        prompt = CompletionStream(probe.prompt_tokens - 1)
        await engine.follow(prompt, 1, random)
        if not prompt.arrivals or not await beside.reach(beside.now()[0].tokens + AFTER_TOKENS):
            return None
    return lengthened_gap(beside.streams[0], prompt)


def lengthened_gap(beside: CompletionStream, prompt: CompletionStream) -> Point | None:
    """Return the iteration of the prompt's first token: the gap of the concurrent request that ends with it.

    None if no gap ends with it, or if an earlier gap since the prompt was sent is lengthened too: then it was
    only the prompt's last chunk. Time between sending and the iteration is no sign of chunks: a server may
    take as long as several iterations of a fast GPU to read a long prompt.
    """
    first_s, arrivals = prompt.arrivals[0].at_s, beside.arrivals
    at = min(range(len(arrivals)), key=lambda at: abs(arrivals[at].at_s - first_s))
    before, after = arrivals[at - 1], arrivals[at]
    sent_at = bisect_left(arrivals, prompt.sent_s, key=_at_s)
    usual_s = median(gaps_s(arrivals[:sent_at])) if sent_at > 1 else 0.0
    took_s = after.at_s - before.at_s
    earlier_s = max((b.at_s - a.at_s for a, b in pairwise(arrivals[max(sent_at - 1, 0) : at])), default=0.0)
    chunked = earlier_s > usual_s + max(usual_s, EARLIER_CHUNK * (took_s - usual_s))
    ends_with_prompt = abs(after.at_s - first_s) <= usual_s and after.tokens == before.tokens + 1
    if not ends_with_prompt or chunked:
        return None
    tokens, context = prompt.prompt_tokens, beside.prompt_tokens + after.tokens
    return Point(BatchWork(tokens + 1, context, chunk_work(tokens, 0)), took_s)


async def _decodes(engine: MeasuredEngine, probe: DecodeProbe, random: Random) -> Point | None:
    async with decoding(engine, probe.requests, probe.prompt_tokens, ANSWER_TOKENS, random) as together:
        if not await together.reach(1):
            return None
        before = await engine.drafts()
        started = together.now()
        if not await together.reach(max(arrival.tokens for arrival in started) + WINDOW_TOKENS):
            return None
        drafts = _between(before, await engine.drafts())
    windows = together.since(started)
    context = mean_context(together, windows)
    if drafts.drafted:
        tokens = sum(window[-1].tokens - window[0].tokens for window in windows)
        gap_s = median(_between_ends_s(window) for window in windows)
        return speculative_iteration(probe.requests, context, gap_s, tokens, drafts)
    gap_s = median(gap_s for window in windows for gap_s in gaps_s(window))
    return Point(BatchWork(probe.requests, context), gap_s)


def mean_context(together: Decoding, windows: Sequence[Sequence[TokenArrival]]) -> int:
    """Return the context tokens of all requests, at the middle of their windows."""
    prompts = sum(stream.prompt_tokens for stream in together.streams)
    return prompts + sum(window[0].tokens + window[-1].tokens for window in windows) // 2


def speculative_iteration(requests: int, context: int, gap_s: float, tokens: int, drafts: Drafts) -> Point:
    """Return an iteration of decodes with drafts. gap_s: inter-token gap. tokens: tokens of all requests."""
    iterations = max(tokens - drafts.accepted, 1)  # of one request each
    drafted = drafts.drafted / iterations
    work = BatchWork(round(requests * (1 + drafted)), context, 0.0, round(drafted))
    return Point(work, gap_s * tokens / iterations)


def gaps_s(window: Sequence[TokenArrival]) -> list[float]:
    """Return the seconds per token over gaps of `GAP_TOKENS` tokens; at least one value."""
    found = []
    for one in window:
        later = bisect_left(window, one.tokens + GAP_TOKENS, key=_tokens)
        if later == len(window):
            break
        found.append((window[later].at_s - one.at_s) / (window[later].tokens - one.tokens))
    return found or [_between_ends_s(window)]


def _tokens(arrival: TokenArrival) -> int:
    return arrival.tokens


def _at_s(arrival: TokenArrival) -> float:
    return arrival.at_s


def _between_ends_s(window: Sequence[TokenArrival]) -> float:
    return (window[-1].at_s - window[0].at_s) / (window[-1].tokens - window[0].tokens)


def _between(before: Drafts, after: Drafts) -> Drafts:
    return Drafts(after.drafted - before.drafted, after.accepted - before.accepted)
