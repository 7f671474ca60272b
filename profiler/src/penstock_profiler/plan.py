"""What an engine is asked: prefills of many lengths, decodes of many batch sizes and contexts.

Prefills tell what a token costs and what attention does to long prompts; decodes alone tell the fixed cost of
an iteration and what context costs. Mixed batches need no probes of their own: the model adds the two.

Probes come in an order that spreads over each axis from its ends inwards, so that whoever stops early still
has points from small to large.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

SHORT_PROMPT_TOKENS = 64
"""Context of decodes that are to read nearly none."""

ANSWER_TOKENS = 512
"""Longest answer asked for; its decodes are cut off as soon as enough has been seen."""

BESIDE_TOKENS = 128
"""Longest answer of the request that a prefill is seen by. An engine that does not mix ends it first."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine can be asked.

    prompt_tokens: longest prompt that it computes in one iteration. requests: most that decode at once.
    context_tokens: longest prompt and answer together. kv_tokens: of its cache; None where nobody knows.
    """

    prompt_tokens: int = 2048
    requests: int = 32
    context_tokens: int = 8192
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Prefill:
    """One iteration of so many tokens: a prompt, with at most one decode beside it."""

    prompt_tokens: int

    def __str__(self) -> str:
        return f"prefill of {self.prompt_tokens}"


@dataclass(frozen=True, slots=True)
class Decodes:
    """So many requests that decode together, each after a prompt this long."""

    requests: int
    prompt_tokens: int

    def __str__(self) -> str:
        return f"{self.requests} decodes after {self.prompt_tokens}"


Probe = Prefill | Decodes

THROUGH, ALONE = Prefill(1), Decodes(1, 1)
"""Two iterations of one token, of which one is seen through a request's whole way: what that way takes."""


def plan(limits: Limits) -> list[Probe]:
    """Every probe once, the telling ones first."""
    prefills: list[Probe] = [Prefill(tokens) for tokens in from_ends(_doubling(16, limits.prompt_tokens))]
    decodes: list[Probe] = [
        Decodes(requests, tokens)
        for tokens in from_ends(_contexts(limits))
        for requests in from_ends(_doubling(1, limits.requests))
        if _fits(requests * (tokens + ANSWER_TOKENS), limits.kv_tokens)
    ]
    return interleaved(prefills, decodes)


def from_ends(items: Sequence[Item]) -> list[Item]:
    """First, last, then the middle of what lies between, and so on inwards."""
    return [*items[:1], *items[1:][-1:], *_middles(items[1:-1])]


def _middles(items: Sequence[Item]) -> list[Item]:
    if not items:
        return []
    middle = len(items) // 2
    return [items[middle], *interleaved(_middles(items[:middle]), _middles(items[middle + 1 :]))]


def interleaved(one: Iterable[Item], other: Iterable[Item]) -> list[Item]:
    """Of each in turn; what is left of the longer at the end."""
    return [item for pair in zip_longest(one, other) for item in pair if item is not None]


def _contexts(limits: Limits) -> list[int]:
    longest = min(limits.prompt_tokens, limits.context_tokens - ANSWER_TOKENS)
    lengths = (SHORT_PROMPT_TOKENS, longest // 4, longest)
    return sorted({tokens for tokens in lengths if 0 < tokens <= longest})


def _doubling(first: int, last: int) -> list[int]:
    """first, twice that, and so on, with what lies halfway between, and last."""
    return [*_doubled(first, last), last]


def _doubled(first: int, last: int) -> Iterator[int]:
    """All but the last."""
    while first < last:
        yield first
        if first < first * 3 // 2 < last:
            yield first * 3 // 2
        first *= 2


def _fits(tokens: int, kv_tokens: int | None) -> bool:
    return kv_tokens is None or tokens <= kv_tokens
