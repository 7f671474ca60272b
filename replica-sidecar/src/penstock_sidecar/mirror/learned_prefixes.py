"""Cached prefixes of an engine without step reports, estimated from its answers.

An answer may report how many tokens of its prompt were cached
(`usage.prompt_tokens_details.cached_tokens`). Engines evict the least recently used prefix first, and its end
before its beginning. So how much of a prompt is still cached depends on the tokens used since then
(`prompt_uses`), and on how many tokens the cache keeps: `keeps_tokens`. The estimate starts at the first
cached prompt with a share of the KV cache. A prefix found at a greater depth raises it, and a missing prefix
lowers it. If a prompt of far smaller depth is missing, the cache was reset, and everything is forgotten.

Caches keep whole blocks, so cached tokens are multiples of the block size, which is the greatest common
divisor of the reported numbers. The tokens of a prefix's parts are estimates, so only a share of a cached
prefix is found; admission counts on the mean share less its mean deviation. Until an answer reports cached
tokens, nothing counts as cached.

Some engines also keep the tokens of an answer, and find them if the next prompt of a chat repeats the answer.
The share of such answers that is found is a separate estimate, which begins at 0: a chat may leave out an
answer's reasoning, and its text may be tokenized differently.

The sidecar cannot hold blocks in such an engine. If a prefix is evicted between the verdict and the prefill,
the prompt takes longer than planned.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

from penstock_core.domain.request import RequestId
from penstock_proto.sse import EngineUsage
from penstock_runtime.prompt_marks import PromptMarks

from penstock_sidecar.mirror.prefix_index import PrefixIndex
from penstock_sidecar.mirror.prompt_uses import KnownPrefix, PromptUses

INITIAL_KEPT_SHARE = 0.9
"""Share of the KV cache that is first assumed to be kept; running answers take the rest."""

RESET_SHARE = 0.25
"""Share of `keeps_tokens` below which the depth of a missing prompt shows a reset."""

GROWTH = 2
"""Multiple of the depth of a cached prefix that is assumed to be kept, while the size of the KV cache is
unknown and no prefix was missing."""

LEARNING_RATE = 0.1
FULL_WEIGHT_TOKENS = 1024
"""Tokens of a prefix from which its share has full weight, because blocks are small in comparison."""

FOUND_SHARE = 0.9
"""Share of a prefix from which it counts as cached, because the tokens of its parts are estimates."""

REPEATED_SHARE = 0.5
"""Mean share of repeated answers that are found, from which a prompt shares the memory of the answer."""

MOST_UNINFORMATIVE = 64
"""Answers without a number of cached tokens after which prompts are no longer compared."""


class _Sent(NamedTuple):
    """The prompt of a request in progress. known: its known prefix when it was sent."""

    marks: PromptMarks
    known: KnownPrefix


class _Counted(NamedTuple):
    """A served prompt that counts as cached. key: key of its last mark."""

    key: int
    tokens: int


@dataclass(slots=True)
class _Share:
    """The share of cached prefixes that is found: mean and mean absolute deviation."""

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
    """Estimates cached prefixes from answers, and updates the index that is reported to routers.

    kv_tokens: returns the size of the engine's KV cache; 0 if unknown.
    """

    def __init__(self, index: PrefixIndex, kv_tokens: Callable[[], int]) -> None:
        self._index, self._kv_tokens = index, kv_tokens
        self.keeps_tokens = 0
        self._uses, self._share = PromptUses(), _Share()
        self._answer_share = _Share(0.0)
        self._uninformative = self._block_tokens = 0
        self._missed_before = False
        self._sent: dict[RequestId, _Sent] = {}
        self._counted: dict[RequestId, _Counted] = {}

    def cached_tokens(self, marks: PromptMarks) -> int:
        """Return the tokens of a new prompt that are probably cached."""
        known = self._uses.known(marks)
        kept = bisect_right(known.depths, self.keeps_tokens)
        tokens = known.tokens[kept - 1] * self._share.counted if kept else 0.0
        if known.answer_depth <= self.keeps_tokens:
            tokens += known.answer_tokens * self._answer_share.counted
        return self._whole_blocks(int(tokens))

    def sent(self, request_id: RequestId, marks: PromptMarks) -> None:
        """Record that a request is sent to the engine."""
        known = self._uses.known(marks)
        self._sent[request_id] = _Sent(marks, known)
        if known.answer_tokens and self._answer_share.mean > REPEATED_SHARE:
            self._uses.repeat_answer(marks.marks[len(known.tokens) - 1].key)
        self._uses.sent(request_id, marks, known.own_tokens, bisect_right(known.depths, self.keeps_tokens))

    def ended(self, request_id: RequestId) -> None:
        """Record that a request has ended, without an answer or after `answered`."""
        self._sent.pop(request_id, None)
        self._uses.ended(request_id)

    def answered(self, request_id: RequestId, usage: EngineUsage) -> None:
        """Learn from a complete answer."""
        if usage.cached_tokens is None:
            self._uninformative += 1
            self._index.wanted = self._index.used or self._uninformative < MOST_UNINFORMATIVE
            return
        self._index.used = True
        self._block_tokens = gcd(self._block_tokens, usage.cached_tokens)
        sent = self._sent.get(request_id)
        if sent is None:
            return
        if sent.known.tokens:
            self._learn(sent.known, usage.cached_tokens)
        self._uses.answered(request_id, sent.marks, usage.prompt_tokens, usage.completion_tokens)
        self._count(request_id, sent.marks, usage.prompt_tokens)
        self._forget_old()

    def lose(self) -> None:
        """Forget everything, because the engine was lost or its cache was reset."""
        self._uses.clear()
        self._sent = {request_id: _Sent(sent.marks, KnownPrefix()) for request_id, sent in self._sent.items()}
        self._discount(list(self._counted))

    def _learn(self, known: KnownPrefix, cached_tokens: int) -> None:
        """Correct the estimate of kept tokens by the cached and the missing part of a prompt."""
        next_tokens = cached_tokens + max(self._block_tokens, 1)  # the next block was not cached
        found = bisect_left(known.tokens, next_tokens)
        missing = bisect_left(known.tokens, next_tokens / FOUND_SHARE)
        if cached_tokens and found:
            self._raise_kept(known.depths[found - 1])
        if missing == len(known.tokens):
            tokens = known.tokens[-1]
            self._share.observe(min(cached_tokens / max(tokens, 1), 1.0), tokens)
            self._learn_answer(known, cached_tokens)
        elif not found and known.depths[missing] <= self.keeps_tokens * RESET_SHARE:
            self.lose()
        else:
            self._missed_before = True
            self.keeps_tokens = min(self.keeps_tokens, known.depths[missing] - 1)

    def _learn_answer(self, known: KnownPrefix, cached_tokens: int) -> None:
        """Learn the share that was found of the blocks that an answer completes."""
        prompt_tokens = self._whole_blocks(known.tokens[-1])
        blocks_tokens = self._whole_blocks(known.tokens[-1] + known.answer_tokens) - prompt_tokens
        if not blocks_tokens or known.answer_depth > self.keeps_tokens:
            return
        share = min(max(cached_tokens - prompt_tokens, 0) / blocks_tokens, 1.0)
        self._answer_share.observe(share, FULL_WEIGHT_TOKENS)

    def _raise_kept(self, depth: int) -> None:
        """Raise the estimate of kept tokens to the depth of a cached prefix."""
        if not self._kv_tokens() and not self._missed_before:
            depth *= GROWTH
        first_tokens = int(self._kv_tokens() * INITIAL_KEPT_SHARE)
        self.keeps_tokens = max(self.keeps_tokens or first_tokens, depth)

    def _whole_blocks(self, tokens: int) -> int:
        return tokens // max(self._block_tokens, 1) * max(self._block_tokens, 1)

    def _count(self, request_id: RequestId, marks: PromptMarks, prompt_tokens: int) -> None:
        """Report a prompt as cached."""
        if request_id not in self._index:
            return
        if self.keeps_tokens:
            self._counted[request_id] = _Counted(marks.marks[-1].key, prompt_tokens)
        counted_tokens = int(prompt_tokens * self._share.counted) if self.keeps_tokens else 0
        self._index.learn(request_id, prompt_tokens, counted_tokens)

    def _forget_old(self) -> None:
        """Stop reporting prompts that are evicted in part, and those that are no longer known."""
        deeper = self._uses.deeper_than(self.keeps_tokens)
        users = ((request_id, self._uses.user(counted.key)) for request_id, counted in self._counted.items())
        self._discount(
            [
                request_id
                for request_id, user in users
                if user is None or user in deeper or request_id not in self._index
            ]
        )

    def _discount(self, request_ids: list[RequestId]) -> None:
        for request_id in request_ids:
            self._index.learn(request_id, self._counted.pop(request_id).tokens, 0)
