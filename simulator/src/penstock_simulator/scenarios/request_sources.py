"""The requests of each arrival of a scenario: one request, or a session of several.

A source draws from a seeded generator. Prompt and answer lengths are drawn as pairs if a recording has them,
because they are correlated and KV memory depends on both.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from operator import attrgetter
from random import Random
from typing import NamedTuple

from penstock_simulator.scenarios.length_distribution import fitted
from penstock_simulator.scenarios.recording import RecordedRequest, recording


class ScenarioRequest(NamedTuple):
    """One request's tier and lengths, without its arrival time."""

    tier: str
    prompt_tokens: int
    output_tokens: int
    thinking_tokens: int = 0


RequestSource = Callable[[Sequence[RecordedRequest], Random], Iterator[Sequence[ScenarioRequest]]]
"""Yields the requests of each recorded arrival, in order; several requests are one session."""


def as_recorded(tier: str) -> RequestSource:
    """Return a source of the lengths recorded with the arrivals."""

    def requests(rows: Sequence[RecordedRequest], random: Random) -> Iterator[Sequence[ScenarioRequest]]:
        for row in rows:
            yield [ScenarioRequest(tier, row.prompt_tokens, row.output_tokens, row.thinking_tokens)]

    return requests


def pairs(tier: str, name: str, most_tokens: int) -> RequestSource:
    """Return a source of a recording's length pairs of at most `most_tokens` in total."""

    @cache
    def fitting() -> list[RecordedRequest]:
        rows = (row for row in recording(name) if row.prompt_tokens + row.output_tokens <= most_tokens)
        return sorted(rows, key=attrgetter("output_tokens", "prompt_tokens"))

    def requests(rows: Sequence[RecordedRequest], random: Random) -> Iterator[Sequence[ScenarioRequest]]:
        for share in stratified(len(rows), random):
            drawn = fitting()[int(share * len(fitting()))]
            yield [ScenarioRequest(tier, drawn.prompt_tokens, drawn.output_tokens)]

    return requests


def reasoning(tier: str) -> RequestSource:
    """Return a source of s1K under DeepSeek-R1: short prompt, long thinking, answer [SLOs-Serve, Table 4]."""
    prompt, thinking, answer = fitted(127, 421, 83), fitted(4693, 7297, 1442), fitted(803, 1650, 280)

    def requests(rows: Sequence[RecordedRequest], random: Random) -> Iterator[Sequence[ScenarioRequest]]:
        for p, t, a in zip(*(stratified(len(rows), random) for _ in range(3)), strict=True):
            thought = thinking.at(t)
            yield [ScenarioRequest(tier, prompt.at(p), thought + answer.at(a), thought)]

    return requests


TOOL_SESSION_SIZES = (0.14, 0.32, 0.30, 0.18, 0.06)
"""Shares of sessions with 1, 2, … requests. Their sizes have mean 2.7 and deviation 1.1."""


def tool_sessions(first: str, loop: str, final: str) -> RequestSource:
    """Return a source of ToolBench: tool calls in a loop, then an answer [SLOs-Serve, Table 4].

    first, loop, final: tiers of a session's first call, of further calls, and of the answer. A session of one
    request is only an answer.
    """
    prompt, output = fitted(690, 2131, 356), fitted(116, 363, 66)

    def requests(rows: Sequence[RecordedRequest], random: Random) -> Iterator[Sequence[ScenarioRequest]]:
        sizes = random.choices(range(1, len(TOOL_SESSION_SIZES) + 1), TOOL_SESSION_SIZES, k=len(rows))
        shares = list(zip(stratified(sum(sizes), random), stratified(sum(sizes), random), strict=True))
        for size in sizes:
            tiers = [first, *[loop] * (size - 2), final] if size > 1 else [final]
            drawn = [shares.pop() for _ in tiers]
            yield [
                ScenarioRequest(tier, prompt.at(p), output.at(o))
                for tier, (p, o) in zip(tiers, drawn, strict=True)
            ]

    return requests


def stratified(count: int, random: Random) -> list[float]:
    """Return quantiles for a stratified sample: one in each of `count` equal parts, shuffled.

    Every sample then has the distribution's mean and tail. Seeds differ in which requests run at the same
    time, not in the amount of work.
    """
    shares = [(number + random.random()) / count for number in range(count)]
    random.shuffle(shares)
    return shares
