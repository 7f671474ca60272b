"""The probes of a profile: prefills of several lengths, decodes of several batch sizes and contexts.

Prefills determine the cost of a token and of a prompt's attention; decodes determine the fixed cost of an
iteration and the cost of context. Mixed batches need no probes, because the time model is additive.

Probes are ordered from the ends of each axis inwards, so that an early end still has points over the whole
range.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeVar

SHORT_PROMPT_TOKENS = 64
"""Prompt of decodes with little context."""

ANSWER_TOKENS = 512
"""Requested length of answers; they are cancelled when enough tokens have arrived."""

CONCURRENT_ANSWER_TOKENS = 128
"""Length of the answer that decodes during a prefill. An engine that does not mix batches ends it first."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class ProfileLimits:
    """The limits of an engine.

    prompt_tokens: longest prompt that it computes in one iteration. requests: most concurrent decodes.
    context_tokens: longest prompt and answer together. kv_tokens: its KV cache; None if unknown.
    """

    prompt_tokens: int = 2048
    requests: int = 32
    context_tokens: int = 8192
    kv_tokens: int | None = None

    def within(self, context_tokens: int) -> "ProfileLimits":
        """Return these limits for an engine with this context; 0 if it is unknown."""
        if not context_tokens:
            return self
        longest = min(self.prompt_tokens, context_tokens - 1)
        return replace(self, prompt_tokens=longest, context_tokens=context_tokens)


@dataclass(frozen=True, slots=True)
class PrefillProbe:
    """One iteration of `prompt_tokens` tokens: a prompt, with at most one decode."""

    prompt_tokens: int

    def __str__(self) -> str:
        return f"prefill of {self.prompt_tokens}"


@dataclass(frozen=True, slots=True)
class DecodeProbe:
    """Concurrent decodes, each after a prompt of `prompt_tokens`."""

    requests: int
    prompt_tokens: int

    def __str__(self) -> str:
        return f"{self.requests} decodes after {self.prompt_tokens}"


Probe = PrefillProbe | DecodeProbe

FIRST_TOKEN, NEXT_TOKEN = PrefillProbe(1), DecodeProbe(1, 1)
"""Two iterations of one token. The first is measured with a request's overhead, which is their difference."""


def plan(limits: ProfileLimits) -> list[Probe]:
    """Return every probe once, the most informative first."""
    prefills: list[Probe] = [
        PrefillProbe(tokens) for tokens in from_ends(_doubling(16, limits.prompt_tokens))
    ]
    decodes: list[Probe] = [
        DecodeProbe(requests, tokens)
        for tokens in from_ends(_contexts(limits))
        for requests in from_ends(_doubling(1, limits.requests))
        if _fits(requests * (tokens + ANSWER_TOKENS), limits.kv_tokens)
    ]
    return interleaved(prefills, decodes)


def from_ends(items: Sequence[Item]) -> list[Item]:
    """Return the first, the last, then the middles recursively."""
    return [*items[:1], *items[1:][-1:], *_middles(items[1:-1])]


def _middles(items: Sequence[Item]) -> list[Item]:
    if not items:
        return []
    middle = len(items) // 2
    return [items[middle], *interleaved(_middles(items[:middle]), _middles(items[middle + 1 :]))]


def interleaved(one: Iterable[Item], other: Iterable[Item]) -> list[Item]:
    """Return the items of both alternately, then the rest of the longer one."""
    return [item for pair in zip_longest(one, other) for item in pair if item is not None]


def _contexts(limits: ProfileLimits) -> list[int]:
    longest = min(limits.prompt_tokens, limits.context_tokens - ANSWER_TOKENS)
    lengths = (SHORT_PROMPT_TOKENS, longest // 4, longest)
    return sorted({tokens for tokens in lengths if 0 < tokens <= longest})


def _doubling(first: int, last: int) -> list[int]:
    """Return `first`, its doublings with the midpoints between them, and `last`."""
    return [*_doubled(first, last), last]


def _doubled(first: int, last: int) -> Iterator[int]:
    """Yield all but the last."""
    while first < last:
        yield first
        if first < first * 3 // 2 < last:
            yield first * 3 // 2
        first *= 2


def _fits(tokens: int, kv_tokens: int | None) -> bool:
    return kv_tokens is None or tokens <= kv_tokens
