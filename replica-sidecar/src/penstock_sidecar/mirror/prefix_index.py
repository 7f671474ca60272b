"""An index of earlier prompts, to estimate how much of a new prompt the engine has cached.

For each prompt that it has computed, the engine reports how many tokens are still cached (`CachedPrompt`). A
new prompt is compared with these prompts by its marks, and the one with the longest common prefix counts. So
the sidecar needs neither a tokenizer nor the engine's hashes.

A prefix that ends where the earlier prompt ended has exactly that prompt's tokens. The tokens of a shorter
prefix are its share of the prompt's bytes, less `MARGIN`. The index is bounded in prompts and marks, and
drops the least recently served. After a lost report everything counts as not cached until it is reported
again.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from penstock_core.domain.request import RequestId
from penstock_proto.telemetry_pb2 import StepReport
from penstock_runtime.prompt_marks import Mark, PromptMarks

from penstock_sidecar.mirror.reported_prefixes import ReportedPrefixes, reported_marks

MOST_PROMPTS = 1024
MOST_MARKS = 1 << 17
"""Most marks of all prompts together: 128 MB of prompts in pieces of a kilobyte."""

MOST_COMPARED = 16
"""Most prompts with the same prefix of which the one with most of it cached is used, the latest first."""

MARGIN = 0.1
"""Share that is subtracted from the estimated tokens of a prefix, because tokens per byte vary within a
prompt."""


class SharedPrefix(NamedTuple):
    """The longest prefix that a prompt shares with an earlier one.

    tokens: tokens of the prefix. exact: whether they are counted, not estimated.
    share: the prefix's share of the new prompt, 0 to 1.
    cached_tokens: tokens of the prefix that are cached now. held_tokens: those of them in blocks that the
        earlier request holds if it is running. request_id: the earlier request.
    """

    tokens: int
    exact: bool
    share: float
    cached_tokens: int
    held_tokens: int
    request_id: RequestId


@dataclass(slots=True)
class _Known:
    """A prompt of the index. earlier: the request before it with its longest known prefix."""

    marks: PromptMarks
    prompt_tokens: int = 0
    cached_tokens: int = 0
    held_tokens: int = 0
    earlier: RequestId | None = None

    def has(self, mark: Mark, at: int) -> bool:
        """Return whether this is its mark number `at`."""
        marks = self.marks.marks
        return at < len(marks) and marks[at].key == mark.key


class PrefixIndex:
    """The last prompts of this replica, by their marks.

    used: whether the engine has shown that it has a prefix cache. wanted: whether marks of prompts are used.
    reported: the prefixes that are reported to routers.
    """

    def __init__(self) -> None:
        self.used = self.wanted = False
        self.reported = ReportedPrefixes()
        self._cache_version, self._block_tokens = ("", 0), 0
        self._known: OrderedDict[RequestId, _Known] = OrderedDict()  # the least recently served first
        self._by_key: dict[int, RequestId] = {}
        self._marks = 0

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._known

    def add(self, request_id: RequestId, marks: PromptMarks) -> None:
        """Add an accepted request's prompt. `longest` finds it once the engine has reported it."""
        if not marks.marks or len(marks.marks) > MOST_MARKS:
            return
        self._drop(request_id)
        self._known[request_id] = _Known(marks)
        self._marks += len(marks.marks)
        while self._marks > MOST_MARKS or len(self._known) > MOST_PROMPTS:
            self._drop(next(iter(self._known)))

    def take(self, report: StepReport, lost: int) -> None:
        """Apply a report. lost: number of reports that were lost before it."""
        cache_version = report.engine_instance, report.cache_resets
        if lost or cache_version != self._cache_version:
            self.forget_cached()
        self.used = self.wanted = report.caches_prefixes
        self._cache_version = cache_version
        self._block_tokens = report.block_tokens
        for prompt in report.cached_prompts:
            self._reported(prompt.request_id, prompt.prompt_tokens, prompt.cached_tokens, prompt.held_tokens)

    def _reported(
        self, request_id: RequestId, prompt_tokens: int, cached_tokens: int, held_tokens: int
    ) -> None:
        """Record the cached tokens of a prompt. Prompts of other senders are ignored."""
        known = self._known.get(request_id)
        if known is None:
            return
        known.held_tokens, cached_tokens = held_tokens, min(cached_tokens, prompt_tokens)
        if (prompt_tokens, cached_tokens) == (known.prompt_tokens, known.cached_tokens):
            return
        if cached_tokens and not known.cached_tokens:
            self._index_marks(request_id, known)
        known.prompt_tokens, known.cached_tokens = prompt_tokens, cached_tokens
        self._report(request_id, known)

    def learn(self, request_id: RequestId, prompt_tokens: int, cached_tokens: int) -> None:
        """Record the probably cached tokens of a served prompt. `longest` finds it even if there are none."""
        known = self._known.get(request_id)
        if known is not None and (not known.prompt_tokens or (cached_tokens and not known.cached_tokens)):
            self._index_marks(request_id, known)
        if known is not None:
            known.prompt_tokens, known.cached_tokens = prompt_tokens, min(cached_tokens, prompt_tokens)
            known.held_tokens = known.cached_tokens
            self._report(request_id, known)

    def _index_marks(self, request_id: RequestId, known: _Known) -> None:
        keys = [mark.key for mark in known.marks.marks]
        earlier = (self._by_key.get(key) for key in reversed(keys))
        known.earlier = next((other for other in earlier if other not in (None, request_id)), known.earlier)
        self._by_key.update(dict.fromkeys(keys, request_id))
        self._known.move_to_end(request_id)

    def forget_cached(self) -> None:
        """Count no prompt as cached until it is reported again."""
        for request_id, known in self._known.items():
            known.cached_tokens = 0
            self._report(request_id, known)

    def _report(self, request_id: RequestId, known: _Known) -> None:
        """Report a prompt's cached prefixes to routers; all of it, if less than one block is missing."""
        if not known.cached_tokens:
            self.reported.report(request_id, ())
            return
        reported_tokens = known.cached_tokens + max(self._block_tokens, 1)
        marks = known.marks.marks
        sized = [(marks[at].key, _tokens_within(known, marks[at].size)) for at in reported_marks(known.marks)]
        self.reported.report(request_id, tuple([key for key, tokens in sized if tokens <= reported_tokens]))

    def longest(self, marks: PromptMarks) -> SharedPrefix | None:
        """Return the longest prefix that an earlier prompt shares; None if there is none.

        If several share it, the latest counts whose prefix is cached.
        """
        for at in range(len(marks.marks) - 1, -1, -1):
            request_id = self._by_key.get(marks.marks[at].key)
            if request_id is not None:
                return self._shared(marks, at, self._best_cached(request_id, marks.marks[at], at))
        return None

    def _best_cached(self, request_id: RequestId, mark: Mark, at: int) -> RequestId:
        """Return the request with most of this prefix cached, of the last ones that have it."""
        best, most_tokens = request_id, -1
        for one in islice(self._from(request_id), MOST_COMPARED):
            known = self._known[one]
            tokens = _tokens_within(known, mark.size)
            if known.has(mark, at) and min(tokens, known.cached_tokens) > most_tokens:
                best, most_tokens = one, min(tokens, known.cached_tokens)
            if most_tokens >= tokens:
                break
        return best

    def _from(self, request_id: RequestId | None) -> Iterator[RequestId]:
        """Yield a request, and those before it with the longest prefix of the next; some may come again."""
        while request_id is not None and request_id in self._known:
            yield request_id
            request_id = self._known[request_id].earlier

    def _shared(self, marks: PromptMarks, at: int, request_id: RequestId) -> SharedPrefix:
        known, size = self._known[request_id], marks.marks[at].size
        tokens = _tokens_within(known, size)
        cached_tokens = min(tokens, known.cached_tokens)
        return SharedPrefix(
            tokens,
            exact=size >= known.marks.size,
            share=size / max(marks.size, 1),
            cached_tokens=cached_tokens,
            held_tokens=min(cached_tokens, known.held_tokens),
            request_id=request_id,
        )

    def cached_tokens(self) -> int:
        """Return the cached tokens of all prompts, counting shared ones once."""
        counted: set[int] = set()
        total = 0
        for known in reversed(self._known.values()):
            if not known.cached_tokens:
                continue
            shared = next((mark.size for mark in reversed(known.marks.marks) if mark.key in counted), 0)
            total += max(known.cached_tokens - (_tokens_within(known, shared) if shared else 0), 0)
            counted.update([mark.key for mark in known.marks.marks])
        return total

    def _drop(self, request_id: RequestId) -> None:
        known = self._known.pop(request_id, None)
        if known is None:
            return
        self.reported.report(request_id, ())
        self._marks -= len(known.marks.marks)
        earlier = self._known.get(known.earlier) if known.earlier is not None else None
        for at, mark in enumerate(known.marks.marks):
            if self._by_key.get(mark.key) != request_id:
                continue
            if known.earlier is not None and earlier is not None and earlier.has(mark, at):
                self._by_key[mark.key] = known.earlier
            else:
                del self._by_key[mark.key]


def _tokens_within(known: _Known, size: int) -> int:
    """Return a lower estimate of the tokens of an earlier prompt's prefix."""
    if known.marks.token_ids:
        return min(size, known.prompt_tokens)
    if size >= known.marks.size:
        return known.prompt_tokens
    return int(known.prompt_tokens * size / known.marks.size * (1 - MARGIN))
