"""An API server in memory, with the verbs of the operator's `Api`.

It keeps what the operator's logic rests on: resource versions, uids, the owner of each field, admission that
changes what is applied, and failures before or after the effect. It checks no schema and fills in no default.
"""

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import orjson
from penstock_operator.cluster.api_client import ApiStatusError, ApiUnreachable
from penstock_operator.cluster.kinds import ResourceKind
from penstock_operator.manifests.list_keys import list_key
from penstock_operator.manifests.manifest import Manifest, Ref, ref_of
from penstock_operator.manifests.names import FIELD_MANAGER
from penstock_operator.objects.strategic_merge import merge_maps
from virtual_time import now_s

FAILURES: tuple[Exception, ...] = (
    ApiStatusError(409, "Conflict", "the object has been modified"),
    ApiStatusError(410, "Expired", "too old resource version"),
    ApiStatusError(429, "TooManyRequests", "try again later"),
    ApiStatusError(500, "InternalError", "etcdserver: leader changed"),
    ApiUnreachable("the API server does not answer: ReadTimeout"),
)


WHOLE = {"selector", "podSelector", "nodeSelector", "labelSelector"}
"""Maps that are owned whole."""


def fields_of(value: Any, name: str = "") -> dict[str, Any]:
    """Return the tree of fields that an apply of this value owns, in the form of `managedFields`."""
    if isinstance(value, dict) and name not in WHOLE:
        return {f"f:{inner}": fields_of(each, inner) for inner, each in value.items()}
    if isinstance(value, list) and value and (key := list_key(name, value)) is not None:
        entries = ((orjson.dumps({key: item[key]}).decode(), item) for item in value)
        return {f"k:{keys}": {".": {}, **fields_of(item)} for keys, item in entries}
    return {}


@dataclass
class MemoryApi:
    """One API server. failing: how likely each request fails. admit: changes what is applied."""

    chance: random.Random = field(default_factory=random.Random)
    failing: float = 0.0
    admit: Callable[[Manifest], Manifest] = lambda manifest: manifest
    objects: dict[Ref, Manifest] = field(default_factory=dict)
    version: int = 1000
    writes: list[Ref] = field(default_factory=list)

    async def get(self, ref: Ref) -> Manifest | None:
        self._fail()
        return deepcopy(self.objects.get(ref))

    async def exists(self, ref: Ref) -> bool:
        return await self.get(ref) is not None

    async def list(
        self, kind: ResourceKind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> tuple[list[Manifest], int]:
        self._fail()
        wanted = (kind.api_version, kind.kind)
        found = [one for ref, one in self.objects.items() if (ref.api_version, ref.kind) == wanted]
        return deepcopy(found), self.version

    async def apply(self, manifest: Manifest, subresource: str | None = None) -> Manifest:
        self._fail()
        made = self.store(self.admit(deepcopy(manifest)), FIELD_MANAGER, manifest, subresource)
        self._fail()  # the answer may be lost as well
        return made

    async def overwrite(self, manifest: Manifest) -> Manifest:
        return await self.apply(manifest)

    async def delete(self, ref: Ref, uid: str) -> None:
        self._fail()
        there = self.objects.get(ref)
        if there is not None and there["metadata"]["uid"] == uid:
            self.writes.append(ref)
            del self.objects[ref]
        self._fail()

    def store(
        self, body: Manifest, manager: str, owned: Manifest | None = None, subresource: str | None = None
    ) -> Manifest:
        """Write an object. owned: what an apply sent; None: an update, which takes the fields that it has."""
        ref = ref_of(body)
        before = self.objects.get(ref, {})
        parts = {name: value for name, value in body.items() if name != "metadata"}
        after = merge_maps(before, parts) if owned is None else {**before, **parts}
        self.version += 1
        metadata = merge_maps(before.get("metadata", {}), body["metadata"])
        entries = metadata.get("managedFields", [])
        if owned is not None and subresource is None:
            entries = [{"manager": manager, "operation": "Apply", "fieldsV1": fields_of(owned)}]
        elif owned is None:
            entries = [
                {**entry, "fieldsV1": _without(entry["fieldsV1"], fields_of(body))} for entry in entries
            ]
        metadata |= {"resourceVersion": str(self.version), "managedFields": entries}
        metadata.setdefault("uid", f"uid-{self.version}")
        metadata.setdefault("generation", 1)
        self.writes.append(ref)
        self.objects[ref] = {**after, "metadata": metadata}
        return deepcopy(self.objects[ref])

    def _fail(self) -> None:
        if self.chance.random() < self.failing:
            raise self.chance.choice(FAILURES)


def _without(tree: dict[str, Any], taken: dict[str, Any]) -> dict[str, Any]:
    """Return a tree of fields without those that another manager has written."""
    left = {}
    for name, inner in tree.items():
        if name in taken and not taken[name]:
            continue
        left[name] = _without(inner, taken[name]) if name in taken else inner
    return left


def when() -> str:
    """Return a time of this run in the format of statuses."""
    return f"2026-01-01T00:{int(now_s()) // 60 % 60:02}:{int(now_s()) % 60:02}Z"
