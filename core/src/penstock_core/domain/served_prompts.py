"""The cached part of each prompt that an engine has served.

From an engine's reports of it another process can estimate how much of a new prompt is cached: it compares
the new prompt with the served ones, and needs neither tokens nor the engine's hashes.

A prompt's cached part grows while it is computed, cannot shrink while its request runs, and then shrinks by
eviction, the least recently used prompt first. So `ServedPrompts.changes` looks up the prompts that are being
computed, the least recently used ones until some have not changed, and a few of the others in turn, which
corrects all other prompts. If a later prompt continues one, both are used together. A prompt that has lost a
block counts as gone: its first blocks are either next to be evicted, or belong to a later prompt too.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

MOST_PROMPTS = 512
MOST_KEYS = 1 << 18
"""Blocks of all prompts together: 4 million tokens in blocks of 16."""

GROWING = 8
"""Prompts being computed that are looked up each time."""

UNCHANGED = 2
"""Unchanged prompts, least recently used first, after which the others are assumed to be unchanged too."""

OLDEST = 16
"""Most of the least recently used prompts that are looked up each time."""

IN_TURN = 4
"""Other prompts that are looked up each time."""

IDLE_IN_TURN = 64
"""The same for an idle engine: all prompts within eight reports, to recover from a lost report."""


class CachedBlocks(NamedTuple):
    """The first blocks of a prompt that are cached.

    held: whether a request holds the last one of them. own: how many of them the prompt's own request holds;
        it may hold copies of the others, which it computed at the same time.
    """

    blocks: int
    held: bool
    own: int = 0


NONE_CACHED = CachedBlocks(0, False)


class CachedPrompt(NamedTuple):
    """A served prompt.

    cached_tokens: leading tokens in the prefix cache. held_tokens: those of them in blocks that its request
        holds while it runs.
    """

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    held_tokens: int = 0


@dataclass(slots=True)
class _Served:
    prompt_tokens: int
    keys: Sequence[Hashable]
    own: Sequence[Any]  # blocks of its request, which grow with it
    cached: CachedBlocks = NONE_CACHED


class ServedPrompts:
    """The last prompts of one engine: at most `MOST_PROMPTS`, with `MOST_KEYS` blocks together.

    look_up: returns the cached blocks of a prompt whose full blocks have these keys. Its other arguments are
        the blocks of the prompt's request, and how many of the first ones are known to be cached.
    """

    def __init__(
        self, look_up: Callable[[Sequence[Hashable], Sequence[Any], int], CachedBlocks], block_tokens: int
    ) -> None:
        self._find, self._block_tokens = look_up, block_tokens
        self._served: OrderedDict[str, _Served] = OrderedDict()  # the least recently used first
        self._running: dict[str, None] = {}
        self._growing: OrderedDict[str, None] = OrderedDict()
        self._by_last_key: dict[Hashable, dict[str, None]] = {}
        self._gone: deque[CachedPrompt] = deque(maxlen=MOST_PROMPTS)
        self._turn = self._keys = 0

    def __len__(self) -> int:
        return len(self._served)

    def started(
        self,
        request_id: str,
        prompt_tokens: int,
        keys: Sequence[Hashable],
        own: Sequence[Any] = (),
        found: int = 0,
    ) -> None:
        """Add a prompt whose prefill begins. One without a full block, or with too many, is left out.

        own: the list of its request's blocks, to which blocks are added until the request ends. found: number
            of blocks that were cached when it started.
        """
        self._drop(request_id)
        if not 0 < len(keys) <= MOST_KEYS:
            return
        self._served[request_id] = _Served(prompt_tokens, keys, own, CachedBlocks(0, False, found))
        self._running[request_id] = self._growing[request_id] = None
        self._by_last_key.setdefault(keys[-1], {})[request_id] = None
        self._keys += len(keys)
        self._use(keys)
        while self._keys > MOST_KEYS or len(self._served) > MOST_PROMPTS:
            oldest, served = next(iter(self._served.items()))
            self._gone.append(CachedPrompt(oldest, served.prompt_tokens, 0))
            self._drop(oldest)

    def ended(self, request_id: str) -> None:
        """Record that a request has ended: its prompt's cached part no longer grows."""
        if request_id in self._running:
            del self._running[request_id]
            served = self._served[request_id]
            served.own, served.cached = (), served.cached._replace(own=0)
            self._use(served.keys)

    def changes(self, in_turn: int = IN_TURN) -> list[CachedPrompt]:
        """Return the present state of prompts that may have changed; one that is gone is returned once.

        in_turn: number of other prompts that are looked up.
        """
        found = {name: self._look_up(name) for name in self._growing_now()}
        found |= self._oldest()
        found |= {name: self._look_up(name) for name in self._in_turn(in_turn)}
        for name, prompt in found.items():
            if prompt.cached_tokens == 0 and name not in self._running:
                self._drop(name)
        gone = list(self._gone)
        self._gone.clear()
        return [*gone, *found.values()]

    def _growing_now(self) -> list[str]:
        names = list(islice(self._growing, GROWING))
        for name in names:
            self._growing.move_to_end(name)
        return names

    def _oldest(self) -> dict[str, CachedPrompt]:
        found: dict[str, CachedPrompt] = {}
        unchanged = 0
        for name in list(islice(self._served, OLDEST)):
            served = self._served[name]
            before = served.cached.blocks
            found[name] = self._look_up(name)
            if served.cached.held:  # so it is used now
                self._served.move_to_end(name)
            else:
                unchanged += served.cached.blocks == before
            if unchanged == UNCHANGED:
                break
        return found

    def _in_turn(self, count: int) -> list[str]:
        names = list(islice(self._served, self._turn, self._turn + count))
        self._turn = self._turn + count if names else 0
        return names

    def _look_up(self, name: str) -> CachedPrompt:
        served, runs = self._served[name], name in self._running
        before, now = served.cached, self._find(served.keys, served.own, served.cached.own)
        lost = now.blocks < before.blocks and not runs
        served.cached = NONE_CACHED if lost else now
        if now.blocks == len(served.keys) or not runs:
            self._growing.pop(name, None)
        tokens = [blocks * self._block_tokens for blocks in (served.cached.blocks, served.cached.own)]
        return CachedPrompt(name, served.prompt_tokens, *tokens)

    def _use(self, keys: Sequence[Hashable]) -> None:
        """Mark a prompt with these keys, and the prompts that it continues, as most recently used.

        The longest of them is evicted first.
        """
        for key in reversed(keys):
            for name in self._by_last_key.get(key, ()):
                self._served.move_to_end(name)

    def _drop(self, request_id: str) -> None:
        served = self._served.pop(request_id, None)
        if served is None:
            return
        self._keys -= len(served.keys)
        self._running.pop(request_id, None)
        self._growing.pop(request_id, None)
        alike = self._by_last_key[served.keys[-1]]
        del alike[request_id]
        if not alike:
            del self._by_last_key[served.keys[-1]]
