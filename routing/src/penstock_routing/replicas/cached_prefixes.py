"""Which replicas have which prefixes of prompts in their prefix caches, as they report it.

Every replica reports to every router the keys of prefixes that its engine has cached (`CachedPrefixes`), all
at the start of a session and then the changes. So routers need not share anything, and know as much after a
restart; a replica that is lost, or starts again, holds nothing until it reports it again.

A replica's prefixes are bounded: `MOST_PREFIXES` take half a megabyte. A replica decides itself by
what it has when a request reaches it, so a prefix that is gone meanwhile costs a hop at worst.
"""

from collections.abc import Iterable, Mapping

from penstock_core.routing.replica_load import NOTHING_CACHED, estimated_tokens
from penstock_proto import replica_pb2 as wire
from penstock_runtime.prompt_marks import PromptMarks

MOST_PREFIXES = 8192
"""Most prefixes kept of one replica: twice what a sidecar reports."""


class PrefixHolder:
    """The prefixes that one replica has."""

    def __init__(self, name: str, prefixes: "CachedPrefixes") -> None:
        self.name, self._prefixes = name, prefixes
        self._keys: set[int] = set()

    def update(self, message: wire.CachedPrefixes) -> None:
        """Take in a report of the replica. Prefixes beyond the bound are ignored."""
        self._prefixes.known = True
        if message.complete:
            self.forget()
        self._remove(message.removed)
        for key in message.added[: MOST_PREFIXES - len(self._keys)]:
            if key not in self._keys:
                self._keys.add(key)
                self._prefixes.add(key, self)

    def forget(self) -> None:
        """Count nothing as cached there: the replica is gone, or reports all again."""
        self._remove(self._keys.copy())

    def _remove(self, keys: Iterable[int]) -> None:
        for key in keys:
            if key in self._keys:
                self._keys.remove(key)
                self._prefixes.remove(key, self)


class CachedPrefixes:
    """Those of all replicas of a pool.

    known: whether any replica has ever reported its cache.
    """

    def __init__(self) -> None:
        self.known = False
        self._holders: dict[int, tuple[PrefixHolder, ...]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def holder(self, name: str) -> PrefixHolder:
        """Return a new replica's part, which holds nothing yet."""
        return PrefixHolder(name, self)

    def add(self, key: int, holder: PrefixHolder) -> None:
        """Note that a replica has a prefix."""
        self._holders[key] = (*self._holders.get(key, ()), holder)

    def remove(self, key: int, holder: PrefixHolder) -> None:
        """Note that it has it no more."""
        left = tuple([other for other in self._holders[key] if other is not holder])
        if left:
            self._holders[key] = left
        else:
            del self._holders[key]

    def cached_tokens(self, marks: PromptMarks) -> Mapping[str, int]:
        """Return the estimated tokens of a prompt that replicas have cached, by name, of those that have any.

        Replicas with the same prefix have the same number, so that their load decides between them.
        """
        if not self._holders:
            return NOTHING_CACHED
        found: dict[str, int] = {}
        for mark in reversed(marks.marks):
            for holder in self._holders.get(mark.key, ()):
                if holder.name not in found:
                    found[holder.name] = mark.size if marks.token_ids else estimated_tokens(mark.size)
        return found
