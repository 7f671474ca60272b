"""What the watches last told: every pool, and every object that carries the operator's label.

A reconcile reads from here, so it costs the API server nothing where nothing is to be done. A watch can
lose events (after a long break its new start lists what is there, and says nothing of what is gone), so the
whole is compared with fresh lists now and then: `replace`. Two kinds of late news must not undo newer ones:
an older version of an object, and any version of one that is gone.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock_operator.cluster.kinds import POOL, Kind
from penstock_operator.manifest import Manifest, Ref, ref_of
from penstock_operator.names import POOL_LABEL

GONE_KEPT = 4096
"""Uids of deleted objects that are remembered; late news is late by seconds, not by thousands of objects."""


class PoolKey(NamedTuple):
    """Which pool."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Seen:
    """Objects by reference, and by the pool they belong to."""

    def __init__(self) -> None:
        self._objects: dict[Ref, Manifest] = {}
        self._of_pool: dict[PoolKey, set[Ref]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()

    def note(self, manifest: Manifest) -> bool:
        """An object is like this now. Whether that is news."""
        if manifest["metadata"]["uid"] in self._gone:
            return False
        ref = ref_of(manifest)
        known = self._objects.get(ref)
        if known is not None and _version(known) >= _version(manifest):
            return False
        manifest["metadata"].pop("managedFields", None)
        self._objects[ref] = manifest
        self._of_pool.setdefault(pool_of(manifest), set()).add(ref)
        return True

    def forget(self, manifest: Manifest) -> bool:
        """An object is gone. Whether that is news."""
        uid = manifest["metadata"]["uid"]
        self._gone[uid] = None
        if len(self._gone) > GONE_KEPT:
            self._gone.popitem(last=False)
        ref = ref_of(manifest)
        known = self._objects.get(ref)
        if known is None or known["metadata"]["uid"] != uid:
            return False
        del self._objects[ref]
        of_pool = self._of_pool[pool_of(known)]
        of_pool.discard(ref)
        if not of_pool:
            del self._of_pool[pool_of(known)]
        return True

    def replace(self, kind: Kind, namespace: str | None, listed: Sequence[Manifest], version: int) -> None:
        """All there is of a kind, as of a resource version. namespace None: in all of them."""
        for manifest in listed:
            self.note(manifest)
        there = {ref_of(manifest) for manifest in listed}
        for ref, known in list(self._objects.items()):
            of_kind = (ref.api_version, ref.kind) == (kind.api_version, kind.kind)
            if (
                of_kind
                and namespace in (None, ref.namespace)
                and ref not in there
                and _version(known) <= version
            ):
                self.forget(known)

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
