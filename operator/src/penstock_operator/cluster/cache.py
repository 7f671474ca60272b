"""Cache of watched objects: every pool, and every object that carries the operator's label.

Reconciliations read from the cache, so those without changes need few requests. Updates come from watches and
from lists, with different precedence.

A watch event reports one object, and may be late: the operator may have written a newer version, or have seen
its deletion. So the higher resource version of an object wins, and a deleted object stays deleted.

A list reports all objects as of some time after its request. It corrects events that watches have lost (after
a long break a watch does not report deletions), and a restored etcd, in which resource versions are lower
than known ones, and deleted objects exist again. So a list replaces everything known before its request; only
later watch events may be newer.

While a list's version is lower than a known one, watches report no events, because they wait for a version
that the server has not reached again. `stale` is true then, and resyncs are more frequent.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock_operator.cluster.kinds import POOL, ResourceKind, kind_of
from penstock_operator.manifests.manifest import Manifest, Ref, ref_of
from penstock_operator.manifests.names import POOL_LABEL

MAX_DELETED_UIDS = 4096
"""Number of remembered uids of deleted objects; late events are late by seconds."""


class PoolKey(NamedTuple):
    """Namespace and name of a pool."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class CacheState(NamedTuple):
    """The cache's state at the request of a list: number of updates, and the kind's highest version."""

    updates: int
    version: int


class Cache:
    """Objects by reference, and by the pool they belong to."""

    def __init__(self) -> None:
        self._objects: dict[Ref, Manifest] = {}
        self._by_pool: dict[PoolKey, set[Ref]] = {}
        self._updates = 0
        self._updated_at: dict[Ref, int] = {}
        self._deleted: OrderedDict[str, int] = OrderedDict()
        self._highest_version: Counter[ResourceKind] = Counter()
        self._stale_kinds: set[ResourceKind] = set()

    @property
    def stale(self) -> bool:
        """Whether the API server's versions are lower than known ones, as after a restore of etcd."""
        return bool(self._stale_kinds)

    def update(self, manifest: Manifest) -> bool:
        """Update an object from a watch event or the response to a write. Returns whether it is newer."""
        if manifest["metadata"]["uid"] in self._deleted:
            return False
        known = self._objects.get(ref_of(manifest))
        if known is not None and _version(known) >= _version(manifest):
            return False
        self._store(manifest)
        return True

    def remove(self, manifest: Manifest) -> bool:
        """Remove a deleted object. Returns whether it was known."""
        uid = manifest["metadata"]["uid"]
        self._updates += 1
        self._deleted[uid] = self._updates
        if len(self._deleted) > MAX_DELETED_UIDS:
            self._deleted.popitem(last=False)
        ref = ref_of(manifest)
        known = self._objects.get(ref)
        if known is None or known["metadata"]["uid"] != uid:
            return False
        del self._objects[ref], self._updated_at[ref]
        of_pool = self._by_pool[pool_of(known)]
        of_pool.discard(ref)
        if not of_pool:
            del self._by_pool[pool_of(known)]
        return True

    def state(self, kind: ResourceKind) -> CacheState:
        """Return the cache's state, to be taken before a list is requested."""
        return CacheState(self._updates, self._highest_version[kind])

    def replace(
        self,
        kind: ResourceKind,
        namespace: str | None,
        listed: Sequence[Manifest],
        version: int,
        state_before: CacheState,
    ) -> set[PoolKey]:
        """Replace all objects of a kind by a list. Returns the pools whose objects have changed.

        namespace: None for all namespaces. version: the list's.
        """
        changed = {pool_of(manifest) for manifest in listed if self._store_listed(manifest, state_before)}
        listed_refs = {ref_of(manifest) for manifest in listed}
        for ref, known in list(self._objects.items()):
            of_kind = (ref.api_version, ref.kind) == (kind.api_version, kind.kind)
            unchanged_since = self._updated_at[ref] <= state_before.updates
            if of_kind and namespace in (None, ref.namespace) and ref not in listed_refs and unchanged_since:
                self.remove(known)
                changed.add(pool_of(known))
        self._highest_version[kind] = max(version, self._highest_version[kind])
        self._stale_kinds = self._stale_kinds - {kind} | ({kind} if version < state_before.version else set())
        return changed

    def _store_listed(self, manifest: Manifest, state_before: CacheState) -> bool:
        """Store a listed object, unless a watch has reported it since the list was requested.

        Returns whether it differs from the known one.
        """
        ref, uid = ref_of(manifest), manifest["metadata"]["uid"]
        if self._deleted.get(uid, 0) > state_before.updates:
            return False
        self._deleted.pop(uid, None)
        if self._updated_at.get(ref, 0) > state_before.updates:
            return self.update(manifest)
        known = self._objects.get(ref)
        self._store(manifest)
        return known is None or _version(known) != _version(manifest)

    def _store(self, manifest: Manifest) -> None:
        manifest["metadata"].pop("managedFields", None)
        ref, kind = ref_of(manifest), kind_of(manifest)
        known = self._objects.get(ref)
        if known is not None and pool_of(known) != pool_of(manifest):
            self._by_pool[pool_of(known)].discard(ref)
        self._updates += 1
        self._updated_at[ref] = self._updates
        self._objects[ref] = manifest
        self._by_pool.setdefault(pool_of(manifest), set()).add(ref)
        self._highest_version[kind] = max(_version(manifest), self._highest_version[kind])

    def pool(self, key: PoolKey) -> Manifest | None:
        """Return a pool, or None."""
        return self._objects.get(Ref(POOL.api_version, POOL.kind, key.namespace, key.name))

    def pools(self) -> Iterator[Manifest]:
        """Return every pool."""
        return (known for ref, known in self._objects.items() if ref.kind == POOL.kind)

    def children(self, key: PoolKey) -> tuple[Manifest, ...]:
        """Return every object with the pool's label, including pods, in the order of their references."""
        refs = sorted(self._by_pool.get(key, ()))
        return tuple(self._objects[ref] for ref in refs if ref.kind != POOL.kind)


def pool_of(manifest: Manifest) -> PoolKey:
    """Return the pool that an object is, or that its label names."""
    metadata = manifest["metadata"]
    if manifest["kind"] == POOL.kind:
        return PoolKey(metadata["namespace"], metadata["name"])
    return PoolKey(metadata["namespace"], metadata.get("labels", {}).get(POOL_LABEL, ""))


def _version(manifest: Manifest) -> int:
    return int(manifest["metadata"]["resourceVersion"])
