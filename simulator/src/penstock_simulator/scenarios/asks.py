"""What each arrival of a scenario asks for: a request, or a session of requests that follow one another.

A source draws from a seeded generator. Pairs of prompt and answer are drawn together wherever a recording
has them: long prompts and long answers are not independent, and the memory that they need is their product
with time.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from operator import attrgetter
from random import Random
from typing import NamedTuple

from penstock_simulator.scenarios.lengths import fitted
from penstock_simulator.scenarios.recording import Row, recording


class Ask(NamedTuple):
    """One request, without its time."""

    tier: str
    prompt_tokens: int
    output_tokens: int
    thinking_tokens: int = 0


Source = Callable[[Sequence[Row], Random], Iterator[Sequence[Ask]]]
"""What the arrivals of these recorded rows ask for, one after the other; several asks are one session."""


def as_recorded(tier: str) -> Source:
    """The lengths that stand beside the arrivals."""

    def asks(rows: Sequence[Row], random: Random) -> Iterator[Sequence[Ask]]:
        for row in rows:
            yield [Ask(tier, row.prompt_tokens, row.output_tokens, row.thinking_tokens)]

    return asks


def pairs(tier: str, name: str, most_tokens: int) -> Source:
    """A recording's pairs of lengths that fit into `most_tokens` together."""

    @cache
    def fitting() -> list[Row]:
        rows = (row for row in recording(name) if row.prompt_tokens + row.output_tokens <= most_tokens)
        return sorted(rows, key=attrgetter("output_tokens", "prompt_tokens"))

    def asks(rows: Sequence[Row], random: Random) -> Iterator[Sequence[Ask]]:
        for share in spread(len(rows), random):
            drawn = fitting()[int(share * len(fitting()))]
            yield [Ask(tier, drawn.prompt_tokens, drawn.output_tokens)]

    return asks


def reasoning(tier: str) -> Source:
    """s1K under DeepSeek-R1: a short prompt, long thought, an answer [SLOs-Serve, Table 4]."""
    prompt, thinking, answer = fitted(127, 421, 83), fitted(4693, 7297, 1442), fitted(803, 1650, 280)

    def asks(rows: Sequence[Row], random: Random) -> Iterator[Sequence[Ask]]:
        for shares in zip(*(spread(len(rows), random) for _ in range(3)), strict=True):
            thought = thinking.at(shares[1])
            yield [Ask(tier, prompt.at(shares[0]), thought + answer.at(shares[2]), thought)]

    return asks


TOOL_PAIRS = (0.14, 0.32, 0.30, 0.18, 0.06)
"""Share of sessions with 1, 2, … pairs of prefill and decode: 2.7 on average, 1.1 off it."""


def tool_sessions(first: str, loop: str, final: str) -> Source:
    """ToolBench: calls of tools in a loop, then an answer [SLOs-Serve, Table 4].

    first, loop, final: tiers of a session's first call, of further ones, and of the answer. A session of one
    pair is an answer at once.
    """
    prompt, output = fitted(690, 2131, 356), fitted(116, 363, 66)

    def asks(rows: Sequence[Row], random: Random) -> Iterator[Sequence[Ask]]:
        sizes = random.choices(range(1, len(TOOL_PAIRS) + 1), TOOL_PAIRS, k=len(rows))
        shares = list(zip(spread(sum(sizes), random), spread(sum(sizes), random), strict=True))
        for size in sizes:
            tiers = [first, *[loop] * (size - 2), final] if size > 1 else [final]
            drawn = [shares.pop() for _ in tiers]
            yield [Ask(tier, prompt.at(p), output.at(o)) for tier, (p, o) in zip(tiers, drawn, strict=True)]

    return asks


def spread(count: int, random: Random) -> list[float]:
    """Shares to draw lengths at: one from each of `count` equal parts of a distribution, in any order.

    Every sample then has the distribution's own mean and tail: seeds differ in what meets what, and not in
    how much work there is.
    """
    shares = [(number + random.random()) / count for number in range(count)]
    random.shuffle(shares)
    return shares
