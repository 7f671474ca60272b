"""Cache of watched objects: every pool, and every object that carries the operator's label.

A reconcile reads from here, so it costs the API server nothing where nothing is to be done. News comes in
two ways, and they are believed differently.

A watch tells of one object at a time, and its events may be late: the operator has written a newer version
meanwhile and knows it, or has heard that the object is gone. So of one object the higher resource version
counts, and what is gone stays gone.

A list tells everything, as of some moment after it was asked for. It corrects what watches have lost (after a
long break a watch lists what is there, and does not report what is gone), and also a history that went
back: when etcd is restored from a backup, resource versions are lower than those that are known, and deleted
objects exist again. So a list counts for everything that was known when it was asked for; only what was heard
since may be newer.

While a list's version is lower than one that was known before, watches are deaf: they go on from a version
that the server has not reached again. `behind` says so, and lists have to be asked for more often.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock_operator.cluster.kinds import POOL, ResourceKind, kind_of
from penstock_operator.manifests.manifest import Manifest, Ref, ref_of
from penstock_operator.manifests.names import POOL_LABEL

GONE_KEPT = 4096
"""Uids of deleted objects that are remembered; late news is late by seconds, not by thousands of objects."""


class PoolKey(NamedTuple):
    """Which pool."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Mark(NamedTuple):
    """What was known when a list was asked for: the count of news, and the kind's highest version."""

    news: int
    version: int


class Cache:
    """Objects by reference, and by the pool they belong to."""

    def __init__(self) -> None:
        self._objects: dict[Ref, Manifest] = {}
        self._of_pool: dict[PoolKey, set[Ref]] = {}
        self._news = 0
        self._heard: dict[Ref, int] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()
        self._highest: dict[ResourceKind, int] = {}
        self._behind: set[ResourceKind] = set()

    @property
    def behind(self) -> bool:
        """Whether the API server has gone back, and watches wait for versions that it has had before."""
        return bool(self._behind)

    def update(self, manifest: Manifest) -> bool:
        """A watch, or the answer to a write, tells of an object. Return whether that is news."""
        if manifest["metadata"]["uid"] in self._gone:
            return False
        known = self._objects.get(ref_of(manifest))
        if known is not None and _version(known) >= _version(manifest):
            return False
        self._keep(manifest)
        return True

    def remove(self, manifest: Manifest) -> bool:
        """An object is gone. Return whether that is news."""
        uid = manifest["metadata"]["uid"]
        self._news += 1
        self._gone[uid] = self._news
        if len(self._gone) > GONE_KEPT:
            self._gone.popitem(last=False)
        ref = ref_of(manifest)
        known = self._objects.get(ref)
        if known is None or known["metadata"]["uid"] != uid:
            return False
        del self._objects[ref], self._heard[ref]
        of_pool = self._of_pool[pool_of(known)]
        of_pool.discard(ref)
        if not of_pool:
            del self._of_pool[pool_of(known)]
        return True

    def mark(self, kind: ResourceKind) -> Mark:
        """To be taken before a list is asked for."""
        return Mark(self._news, self._highest.get(kind, 0))

    def replace(
        self, kind: ResourceKind, namespace: str | None, listed: Sequence[Manifest], version: int, asked: Mark
    ) -> None:
        """All there is of a kind, as of a resource version. namespace None: in all of them."""
        for manifest in listed:
            self._believe(manifest, asked)
        there = {ref_of(manifest) for manifest in listed}
        for ref, known in list(self._objects.items()):
            of_kind = (ref.api_version, ref.kind) == (kind.api_version, kind.kind)
            known_before = self._heard[ref] <= asked.news
            if of_kind and namespace in (None, ref.namespace) and ref not in there and known_before:
                self.remove(known)
        self._highest[kind] = max(version, self._highest.get(kind, 0))
        self._behind = self._behind - {kind} | ({kind} if version < asked.version else set())

    def _believe(self, manifest: Manifest, asked: Mark) -> None:
        """Keep a listed object, unless something newer was heard since the list was asked for."""
        ref, uid = ref_of(manifest), manifest["metadata"]["uid"]
        if self._gone.get(uid, 0) > asked.news:
            return
        self._gone.pop(uid, None)
        if self._heard.get(ref, 0) <= asked.news:
            self._keep(manifest)
        else:
            self.update(manifest)

    def _keep(self, manifest: Manifest) -> None:
        manifest["metadata"].pop("managedFields", None)
        ref, kind = ref_of(manifest), kind_of(manifest)
        known = self._objects.get(ref)
        if known is not None and pool_of(known) != pool_of(manifest):
            self._of_pool[pool_of(known)].discard(ref)
        self._news += 1
        self._heard[ref] = self._news
        self._objects[ref] = manifest
        self._of_pool.setdefault(pool_of(manifest), set()).add(ref)
        self._highest[kind] = max(_version(manifest), self._highest.get(kind, 0))

    def pool(self, key: PoolKey) -> Manifest | None:
        """A pool by its name."""
        return self._objects.get(Ref(POOL.api_version, POOL.kind, key.namespace, key.name))

    def pools(self) -> Iterator[Manifest]:
        """Every pool."""
        return (known for ref, known in self._objects.items() if ref.kind == POOL.kind)

    def children(self, key: PoolKey) -> tuple[Manifest, ...]:
        """Every object that carries the pool's label, pods among them, in the order of their references."""
        refs = sorted(self._of_pool.get(key, ()))
        return tuple(self._objects[ref] for ref in refs if ref.kind != POOL.kind)


def pool_of(manifest: Manifest) -> PoolKey:
    """The pool that an object is, or that its label names."""
    metadata = manifest["metadata"]
    if manifest["kind"] == POOL.kind:
        return PoolKey(metadata["namespace"], metadata["name"])
    return PoolKey(metadata["namespace"], metadata.get("labels", {}).get(POOL_LABEL, ""))


def _version(manifest: Manifest) -> int:
    return int(manifest["metadata"]["resourceVersion"])
