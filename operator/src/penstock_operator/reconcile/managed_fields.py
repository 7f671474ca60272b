"""Reads the fields of an object that the operator owns from `metadata.managedFields`.

It has an entry for each manager with a tree of field names: `f:name` for a field, `k:{"name":"engine"}` for
an entry of a list that is a map, an empty tree for a value owned as a whole. A field leaves the operator's
tree when another manager changes or removes it. It stays when an admission webhook changes it, because that
is part of the operator's own write.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import FIELD_MANAGER

Fields = Mapping[str, Any]
"""A tree of owned fields; empty if the value is owned as a whole."""

_ENTRY_ONLY: Fields = {".": {}}
"""An entry of a list without its fields, for which Kubernetes also writes an empty tree."""


def owned_fields(manifest: Manifest) -> Fields | None:
    """Return the fields that the operator's last apply owns; None if the object has no such entry."""
    for entry in manifest.get("metadata", {}).get("managedFields") or ():
        applied = entry.get("operation") == "Apply" and not entry.get("subresource")
        if applied and entry.get("manager") == FIELD_MANAGER:
            return entry.get("fieldsV1") or None
    return None


def subtree_of_field(owned: Fields | None, name: str) -> Fields | None:
    """Return the part of a tree under a field; None if it is not owned."""
    return owned.get(f"f:{name}") if owned else owned


def subtree_of_entry(owned: Fields | None, entry: Any) -> Fields | None:
    """Return the part of a tree under an entry of a list; None if it is not owned."""
    if not owned or not isinstance(entry, dict):
        return owned if not owned else None
    for name, inner in owned.items():
        kind, _, keys = name.partition(":")
        if kind == "k" and _matches(orjson.loads(keys), entry):
            return inner or _ENTRY_ONLY
    return None


def _matches(keys: dict[str, Any], entry: dict[str, Any]) -> bool:
    """Return whether an entry has these keys. An absent key has its default, such as a port's protocol."""
    return all(entry.get(name, value) == value for name, value in keys.items())
