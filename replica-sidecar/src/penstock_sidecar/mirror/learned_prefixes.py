"""What an engine that reports nothing has cached, learned from the answers that pass.

An answer may say how many tokens of its prompt were found in the engine's cache
(`usage.prompt_tokens_details.cached_tokens`). Engines evict the least recently used prefix first, so whether
an earlier prompt is still there depends on how much the engine has computed since it was last used: its age,
in tokens. `keeps_tokens` is the age up to which prompts were found. It begins with half of the KV cache, at
the first prompt that was found at all; a prompt found at a greater age raises it, and one that was not found
lowers it below that one's age. A prompt that was missing although far younger than that means that the cache
was reset: everything is forgotten.

Of a prompt that should be there, a share is found, because caches keep whole blocks. The mean share less its
mean deviation is counted on. Until an answer has said something, nothing is counted as cached.

The sidecar cannot hold blocks in such an engine. A prefix that is evicted between the verdict and the prefill
makes that prompt later than planned; the margin of ages and shares covers most of that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from penstock_core.domain.request import RequestId
from penstock_runtime.engine.sse import EngineUsage
from penstock_runtime.prompt_marks import PromptMarks

from penstock_sidecar.mirror.prefix_index import MOST_PROMPTS, PrefixIndex

KEPT_AT_FIRST = 0.5
"""Share of the KV cache that earlier prompts are taken to have until more is known."""

MARGIN = 0.8
"""Share of an age at which a prompt was missing, up to which others are still counted on."""

RESET = 0.25
"""Share of `keeps_tokens` below which a missing prompt means a reset."""

LEARNING_RATE = 0.1
FULL_WEIGHT_TOKENS = 1024
"""Tokens of a prefix from which its share has full weight: blocks are small beside it."""

FOUND = 0.5
"""Share of an expected prefix from which it counts as found."""

MORE = 1.1
"""Share above which something longer was found than was expected."""


MOST_SILENT = 64
"""Answers that say nothing of cached tokens, after which prompts are not compared any more."""


class ExpectedHit(NamedTuple):
    """What a request was expected to find: this many tokens of an earlier prompt, at this age."""

    request_id: RequestId
    tokens: int
    age_tokens: int


@dataclass(slots=True)
class _Share:
    """The share of cached prefixes that is found: its mean, and mean absolute deviation."""

    mean: float = 1.0
    deviation: float = 0.0

    def observe(self, share: float, tokens: int) -> None:
        rate = LEARNING_RATE * min(tokens / FULL_WEIGHT_TOKENS, 1.0)
        self.deviation += rate * (abs(share - self.mean) - self.deviation)
        self.mean += rate * (share - self.mean)

    @property
    def counted(self) -> float:
        return max(self.mean - self.deviation, 0.0)


class LearnedPrefixes:
    """Keeps an index up to date from answers.

    kv_tokens: returns those of the engine's KV cache; 0 if unknown.
    """

    def __init__(self, index: PrefixIndex, kv_tokens: Callable[[], int]) -> None:
        self._index, self._kv_tokens = index, kv_tokens
        self.keeps_tokens = 0
        self._share = _Share()
        self._computed_tokens = self._silent = 0
        self._used_at: dict[RequestId, int] = {}  # the least recently used first
        self._counted: dict[RequestId, None] = {}  # those that count as cached, likewise
        self._prompt_tokens: dict[RequestId, int] = {}
        self._expected: dict[RequestId, ExpectedHit] = {}

    def sent(self, request_id: RequestId, marks: PromptMarks) -> None:
        """Note that a request goes to the engine."""
        found = self._index.longest(marks)
        if found is not None and found.request_id in self._used_at:
            age_tokens = self._computed_tokens - self._used_at[found.request_id]
            self._expected[request_id] = ExpectedHit(found.request_id, found.tokens, age_tokens)

    def ended(self, request_id: RequestId) -> None:
        """Note that a request has ended without an answer, or after `answered`."""
        self._expected.pop(request_id, None)

    def answered(self, request_id: RequestId, usage: EngineUsage) -> None:
        """Learn from a whole answer."""
        prompt_tokens, cached_tokens = usage.prompt_tokens, usage.cached_tokens
        if cached_tokens is None:
            self._silent += 1
            self._index.wanted = self._index.used or self._silent < MOST_SILENT
            return
        self._index.used = True
        expected = self._expected.get(request_id)
        if expected is not None and expected.tokens:
            self._learn(expected, cached_tokens)
        self._computed_tokens += prompt_tokens - cached_tokens + usage.completion_tokens
        if expected is not None and cached_tokens and expected.request_id in self._used_at:
            self._use(expected.request_id)
        if request_id in self._index:
            self._prompt_tokens[request_id] = prompt_tokens
            self._use(request_id)
        self._forget_old()

    def lose(self) -> None:
        """Forget everything: the engine has gone."""
        for request_id in list(self._used_at):
            self._gone(request_id)

    def _learn(self, expected: ExpectedHit, cached_tokens: int) -> None:
        share = cached_tokens / expected.tokens
        if share > MORE:  # found in a later prompt, which says nothing of this one
            return
        if share >= FOUND:
            self._share.observe(min(share, 1.0), expected.tokens)
            self.keeps_tokens = max(
                self.keeps_tokens or int(self._kv_tokens() * KEPT_AT_FIRST), expected.age_tokens
            )
        elif expected.age_tokens < RESET * self.keeps_tokens:
            self.lose()
        else:
            self.keeps_tokens = min(self.keeps_tokens, int(expected.age_tokens * MARGIN))

    def _use(self, request_id: RequestId) -> None:
        self._used_at.pop(request_id, None)
        self._counted.pop(request_id, None)
        self._used_at[request_id] = self._computed_tokens
        tokens = self._prompt_tokens[request_id]
        if self.keeps_tokens:
            self._counted[request_id] = None
        self._index.learn(request_id, tokens, int(tokens * self._share.counted) if self.keeps_tokens else 0)

    def _forget_old(self) -> None:
        """Count nothing of prompts that are older than the engine keeps, and forget the oldest ones."""
        while len(self._used_at) > MOST_PROMPTS:
            self._gone(next(iter(self._used_at)))
        for request_id in list(self._counted):
            if self._computed_tokens - self._used_at[request_id] <= self.keeps_tokens:
                break
            del self._counted[request_id]
            self._index.learn(request_id, self._prompt_tokens[request_id], 0)

    def _gone(self, request_id: RequestId) -> None:
        del self._used_at[request_id]
        self._counted.pop(request_id, None)
        self._index.learn(request_id, self._prompt_tokens.pop(request_id), 0)
