"""Prompts in the order of their last use, as an engine's prefix cache with LRU eviction has them.

A prompt is a chain of marks (`runtime/prompt_marks.py`), each with the tokens since the previous mark. A
request that uses a chain takes its marks from earlier requests, so each mark belongs to its last user and is
counted once. The depth of a mark is the number of tokens used later, plus those of its own prefix: a cache of
this size still has it. Engines evict the last block of a request first, so within a request the answer is
deepest, then the end of the prompt.

A request has its place in the order as soon as it is sent, because it takes memory from then on. Other
requests find its new marks only after its answer.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

from penstock_core.domain.request import RequestId
from penstock_runtime.prompt_marks import Mark, PromptMarks

from penstock_sidecar.mirror.prefix_index import MOST_MARKS, MOST_PROMPTS


class KnownPrefix(NamedTuple):
    """The known marks at the beginning of a prompt.

    own_tokens: tokens of each mark. tokens: tokens of the prompt up to each. depths: depth of each.
    answer_tokens: tokens of the answer to exactly this prefix if the prompt continues after it, because its
        next message is then that answer; else 0. answer_depth: depth of the answer.
    """

    own_tokens: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    answer_tokens: int = 0
    answer_depth: int = 0


@dataclass(slots=True)
class _PromptUse:
    """The prompt of one request.

    known: how many of its marks were known when it was sent; None once its answer is complete.
    kept: how many of them were assumed to be cached.
    tokens: tokens of the marks that no later request has used, by key, in the order of the prompt.
    answer_tokens: tokens of its answer.
    total: the sum of these, plus tokens that no prompt can share.
    """

    known: int | None = None
    kept: int = 0
    tokens: dict[int, int] = field(default_factory=dict)
    answer_tokens: int = 0
    total: int = 0

    def ends_with(self, key: int) -> bool:
        """Return whether the prompt is answered and ends with this mark."""
        return self.known is None and next(reversed(self.tokens), None) == key


class PromptUses:
    """The last prompts. total: tokens of all of them, each shared prefix once."""

    def __init__(self) -> None:
        self.total = 0
        self._uses: OrderedDict[RequestId, _PromptUse] = OrderedDict()  # the least recently used first
        self._users: dict[int, RequestId] = {}
        self._under_way: dict[RequestId, None] = {}  # in the order of sending
        self._tokens_per_size = 0.0

    def __len__(self) -> int:
        return len(self._uses)

    def known(self, marks: PromptMarks) -> KnownPrefix:
        """Return the known prefix of a prompt."""
        own_tokens, depths = list[int](), list[int]()
        newest_first, newer, reached = reversed(self._uses.items()), 0, dict[RequestId, int]()
        user, use, depth = None, _PromptUse(), 0
        for number, mark in enumerate(marks.marks):
            mark_user = self._users.get(mark.key)
            if mark_user is None:
                break
            if mark_user != user:
                while mark_user not in reached:
                    request_id, newer_use = next(newest_first)
                    reached[request_id], newer = newer, newer + newer_use.total
                user, use, depth = mark_user, self._uses[mark_user], max(depth, reached[mark_user])
            if use.known is not None and number >= use.known:
                break
            own_tokens.append(use.tokens[mark.key])
            depth += own_tokens[-1]
            depths.append(depth)
        known = KnownPrefix(tuple(own_tokens), tuple(accumulate(own_tokens)), tuple(depths))
        if (
            not depths
            or len(depths) == len(marks.marks)
            or not use.ends_with(marks.marks[len(depths) - 1].key)
        ):
            return known
        return known._replace(answer_tokens=use.answer_tokens, answer_depth=depth + use.answer_tokens)

    def sent(self, request_id: RequestId, marks: PromptMarks, own_tokens: tuple[int, ...], kept: int) -> None:
        """Record that a request is sent to the engine.

        own_tokens: tokens of its known marks. kept: how many of these are assumed to be cached.
        """
        known = len(own_tokens)
        size = marks.size - _size(marks, known)
        new_tokens = int(size * (1 if marks.token_ids else self._tokens_per_size))
        self._use(request_id, marks.marks, [*own_tokens, *_spread(marks, known, new_tokens)])
        self._uses[request_id].known, self._uses[request_id].kept = known, kept
        self._under_way[request_id] = None
        self._bound()

    def repeat_answer(self, key: int) -> None:
        """Record that a new prompt contains the answer to the prompt that ends with this mark."""
        use = self._uses[self._users[key]]
        self._grow(use, -use.answer_tokens)
        use.answer_tokens = 0

    def answered(
        self, request_id: RequestId, marks: PromptMarks, prompt_tokens: int, answer_tokens: int
    ) -> None:
        """Record a complete answer. Its request becomes the most recent one after those in progress.

        Marks that requests in progress use too remain theirs.
        """
        before = self._uses.get(request_id)
        known_tokens = self._tokens_of(marks, 0 if before is None else before.known or 0)
        new_tokens = max(prompt_tokens - sum(known_tokens), 0)
        tokens = known_tokens + _spread(marks, len(known_tokens), new_tokens)
        self._under_way.pop(request_id, None)
        shared = self._computed(marks, tokens)
        self._use(request_id, marks.marks[shared:], tokens[shared:])
        self._uses[request_id].answer_tokens = answer_tokens
        self._grow(self._uses[request_id], max(prompt_tokens - sum(tokens), 0) + answer_tokens)
        self._keep_order()
        if marks.size:
            self._tokens_per_size = prompt_tokens / marks.size
        self._bound()

    def ended(self, request_id: RequestId) -> None:
        """Record that a request has ended. Without an answer, none of its new marks is certainly computed."""
        use = self._uses.get(request_id)
        if use is None or use.known is None:
            return
        for key in list(use.tokens)[use.kept :]:
            self._drop(key)
        use.known = None
        del self._under_way[request_id]
        self._keep_order()

    def deeper_than(self, tokens: int) -> set[RequestId]:
        """Return the requests whose deepest token is deeper than this number of tokens."""
        depth, deeper = self.total, set()
        for request_id, use in self._uses.items():
            if depth <= tokens:
                break
            deeper.add(request_id)
            depth -= use.total
        return deeper

    def user(self, key: int) -> RequestId | None:
        """Return the request that used a mark last."""
        return self._users.get(key)

    def clear(self) -> None:
        """Forget everything."""
        self._uses.clear()
        self._users.clear()
        self._under_way.clear()
        self.total = 0

    def _tokens_of(self, marks: PromptMarks, known: int) -> list[int]:
        """Return the tokens of the first marks, up to one that is no longer known."""
        tokens = []
        for mark in marks.marks[:known]:
            user = self._users.get(mark.key)
            if user is None:
                break
            tokens.append(self._uses[user].tokens[mark.key])
        return tokens

    def _use(self, request_id: RequestId, marks: Sequence[Mark], tokens: Sequence[int]) -> None:
        """Make a request the most recent use of these marks, and of no others."""
        taken = {mark.key: own for mark, own in zip(marks, tokens, strict=True)}
        for key in taken:
            self._drop(key)
        self._forget(request_id)
        self._uses[request_id] = _PromptUse(tokens=taken)
        self._users |= dict.fromkeys(taken, request_id)
        self._grow(self._uses[request_id], sum(tokens))

    def _computed(self, marks: PromptMarks, tokens: list[int]) -> int:
        """Record that the marks are computed. Return how many of the first ones requests in progress use."""
        for number, mark in enumerate(marks.marks):
            user = self._users.get(mark.key)
            if user not in self._under_way:
                return number
            use = self._uses[user]
            assert use.known is not None
            use.known = max(use.known, number + 1)
            self._grow(use, tokens[number] - use.tokens[mark.key])
            use.tokens[mark.key] = tokens[number]
        return len(marks.marks)

    def _keep_order(self) -> None:
        """Move requests in progress to the most recent end."""
        for request_id in self._under_way:
            self._uses.move_to_end(request_id)

    def _grow(self, use: _PromptUse, tokens: int) -> None:
        use.total += tokens
        self.total += tokens

    def _drop(self, key: int) -> int | None:
        """Take a mark from its user. Return its tokens; None without a user."""
        user = self._users.pop(key, None)
        if user is None:
            return None
        tokens = self._uses[user].tokens.pop(key)
        self._grow(self._uses[user], -tokens)
        return tokens

    def _forget(self, request_id: RequestId) -> None:
        use = self._uses.pop(request_id, None)
        self._under_way.pop(request_id, None)
        if use is not None:
            self._grow(use, -use.total)
            for key in use.tokens:
                del self._users[key]

    def _bound(self) -> None:
        while len(self._uses) > MOST_PROMPTS or len(self._users) > MOST_MARKS:
            self._forget(next(iter(self._uses)))


def _size(marks: PromptMarks, known: int) -> int:
    """Return the size of the first marks."""
    return marks.marks[known - 1].size if known else 0


def _spread(marks: PromptMarks, known: int, tokens: int) -> list[int]:
    """Distribute tokens over the marks after the known ones, by size. Pieces without an id have size 0."""
    begin = _size(marks, known)
    size = max(marks.size - begin, 1)
    until = [tokens * (mark.size - begin) // size for mark in marks.marks[known:]]
    return [end - before for before, end in pairwise([0, *until])]
