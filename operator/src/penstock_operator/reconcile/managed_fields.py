"""Which fields of an object are still the operator's, as the API server keeps account of it.

`metadata.managedFields` has an entry for each manager with a tree of field names: `f:name` for a field,
`k:{"name":"engine"}` for the entry of a list that is a map, an empty tree for what is owned whole. A field
leaves the operator's tree when another manager changes or removes it. It stays there when an admission
webhook changes it, because that happens within the operator's own write.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import FIELD_MANAGER

Fields = Mapping[str, Any]
"""A tree of owned fields; empty: owned whole."""

_ENTRY_ALONE: Fields = {".": {}}
"""An entry of a list, and none of its fields. Kubernetes writes an empty tree there, too."""


def owned_fields(manifest: Manifest) -> Fields | None:
    """The fields that the operator's last apply owns; None where the object does not tell."""
    for entry in manifest.get("metadata", {}).get("managedFields") or ():
        applied = entry.get("operation") == "Apply" and not entry.get("subresource")
        if applied and entry.get("manager") == FIELD_MANAGER:
            return entry.get("fieldsV1") or None
    return None


def of_field(owned: Fields | None, name: str) -> Fields | None:
    """The part of a tree under a field; None where it is not owned."""
    return owned.get(f"f:{name}") if owned else owned


def of_entry(owned: Fields | None, entry: Any) -> Fields | None:
    """The part of a tree under an entry of a list; None where it is not owned."""
    if not owned or not isinstance(entry, dict):
        return owned if not owned else None
    for name, inner in owned.items():
        kind, _, keys = name.partition(":")
        if kind == "k" and _matches(orjson.loads(keys), entry):
            return inner or _ENTRY_ALONE
    return None


def _matches(keys: dict[str, Any], entry: dict[str, Any]) -> bool:
    """A key that the entry leaves out has its default, such as a port's protocol."""
    return all(entry.get(name, value) == value for name, value in keys.items())
