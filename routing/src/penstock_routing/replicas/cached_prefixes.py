"""Prefixes of prompts in the replicas' prefix caches, as replicas report them.

Every replica reports to every router the keys of the prefixes that its engine has cached (`CachedPrefixes`):
all at the start of a session, then the changes. So routers share nothing about caches, and lose nothing by a
restart. A replica that is lost or restarted counts as empty until it reports again.

A replica's prefixes are bounded: `MOST_PREFIXES` take half a megabyte. A replica decides by its own cache
when a request reaches it, so a prefix that was evicted meanwhile costs at most a hop.
"""

from collections.abc import Iterable, Mapping

from penstock_core.routing.replica_load import NOTHING_CACHED, estimated_tokens
from penstock_proto import replica_pb2 as wire
from penstock_runtime.prompt_marks import PromptMarks

MOST_PREFIXES = 8192
"""Most prefixes kept of one replica: twice what a sidecar reports."""


class PrefixHolder:
    """The cached prefixes of one replica."""

    def __init__(self, name: str, prefixes: "CachedPrefixes") -> None:
        self.name, self._prefixes = name, prefixes
        self._keys: set[int] = set()

    def update(self, message: wire.CachedPrefixes) -> None:
        """Apply a report of the replica. Prefixes beyond the bound are ignored."""
        self._prefixes.known = True
        if message.complete:
            self.forget()
        self._remove(message.removed)
        for key in message.added[: MOST_PREFIXES - len(self._keys)]:
            if key not in self._keys:
                self._keys.add(key)
                self._prefixes.add(key, self)

    def forget(self) -> None:
        """Forget all prefixes: the replica is lost, or reports all of them again."""
        self._remove(self._keys.copy())

    def _remove(self, keys: Iterable[int]) -> None:
        for key in keys:
            if key in self._keys:
                self._keys.remove(key)
                self._prefixes.remove(key, self)


class CachedPrefixes:
    """The cached prefixes of all replicas of a pool.

    known: whether any replica has ever reported its cache.
    """

    def __init__(self) -> None:
        self.known = False
        self._holders: dict[int, tuple[PrefixHolder, ...]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def holder(self, name: str) -> PrefixHolder:
        """Return the prefixes of a new replica, which has none yet."""
        return PrefixHolder(name, self)

    def add(self, key: int, holder: PrefixHolder) -> None:
        """Record that a replica has a prefix."""
        self._holders[key] = (*self._holders.get(key, ()), holder)

    def remove(self, key: int, holder: PrefixHolder) -> None:
        """Record that a replica no longer has a prefix."""
        left = tuple([other for other in self._holders[key] if other is not holder])
        if left:
            self._holders[key] = left
        else:
            del self._holders[key]

    def cached_tokens(self, marks: PromptMarks) -> Mapping[str, int]:
        """Return the estimated tokens of a prompt that each replica has cached, by name, if it has any.

        Replicas with the same prefix get the same number, so that their load decides between them.
        """
        if not self._holders:
            return NOTHING_CACHED
        found: dict[str, int] = {}
        for mark in reversed(marks.marks):
            for holder in self._holders.get(mark.key, ()):
                if holder.name not in found:
                    found[holder.name] = mark.size if marks.token_ids else estimated_tokens(mark.size)
        return found
