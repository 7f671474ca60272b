"""Compares an object with the manifest that was applied.

The API server fills in defaults, other controllers add fields, and quantities are returned in another
notation. So only the fields of the manifest are compared. Lists that are maps are compared entry by entry,
all other lists as a whole, as server-side apply owns them.

A difference is drift if another field manager owns the field. If the operator still owns it, a mutating
webhook or policy changed the operator's own write, such as an image's registry, and would do so again. Such a
field is left unchanged.

A field with an empty value (`{}`, `[]`, `""`, 0, false) equals an absent one, because the server drops many
of those, except for the few whose absence has another meaning.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock_operator.manifests.list_keys import list_key
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.quantities import quantity
from penstock_operator.reconcile.managed_fields import Fields, of_entry, of_field, owned_fields

_ABSENT = object()
_DEFAULT_IS_NOT_EMPTY = frozenset(
    {
        "allowPrivilegeEscalation",
        "automountServiceAccountToken",
        "enableServiceLinks",
        "replicas",
        "maxUnavailable",
    }
)
"""Fields whose absence does not mean empty."""

_ORDERED = frozenset({"initContainers"})
"""Lists by key whose order matters."""

_WHOLE_MAPS = frozenset(
    {"selector", "matchLabels", "podSelector", "namespaceSelector", "labelSelector", "nodeSelector"}
)
"""Maps that are compared as a whole: an added entry changes what a selector selects."""

_OF_QUANTITIES = frozenset({"limits", "requests", "sizeLimit", "averageValue"})


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of an object that differs from the applied manifest.

    absent: the object has no such field. A removed limit or request counts as changed: resource adjusters
        remove them, and the API server never does.
    owned: the operator still owns the field: admission changed it, or the API server does not know it.
    """

    path: str
    absent: bool
    owned: bool


def differences(wanted: Manifest, observed: Manifest) -> tuple[Difference, ...]:
    """Return the fields of `wanted` that differ in `observed`. Without managedFields, none is owned."""
    return tuple(_differences("", "", wanted, observed, owned_fields(observed)))


def drift(wanted: Manifest, observed: Manifest) -> tuple[str, ...]:
    """Return the paths of fields that another manager has changed, in order."""
    return tuple(each.path for each in differences(wanted, observed) if not each.owned)


def _differences(
    path: str, field: str, wanted: Any, observed: Any, owned: Fields | None
) -> Iterator[Difference]:
    if isinstance(wanted, dict) and isinstance(observed, dict):
        if field in _WHOLE_MAPS and observed.keys() - wanted.keys():
            yield Difference(path, absent=False, owned=_whole(owned))
        for name, value in wanted.items():
            inner = field if field in _OF_QUANTITIES else name
            yield from _differences(
                _join(path, name), inner, value, observed.get(name, _ABSENT), of_field(owned, name)
            )
    elif isinstance(wanted, list) and isinstance(observed, list):
        yield from _list_differences(path, field, wanted, observed, owned)
    elif not _same(field, wanted, observed):
        absent = (observed is _ABSENT or observed is None) and field not in _OF_QUANTITIES
        yield Difference(path, absent, owned=owned is not None)


def _list_differences(
    path: str, field: str, wanted: list[Any], observed: list[Any], owned: Fields | None
) -> Iterator[Difference]:
    key = list_key(field, wanted)
    if key is None:
        if len(wanted) != len(observed):
            yield Difference(path, absent=False, owned=_whole(owned))
            return
        for index, (one, other) in enumerate(zip(wanted, observed, strict=True)):
            yield from _differences(f"{path}[{index}]", field, one, other, of_entry(owned, one))
        return
    there = {item.get(key): item for item in observed if isinstance(item, dict)}
    for item in wanted:
        name = item[key]
        yield from _differences(f"{path}[{name}]", "", item, there.get(name, _ABSENT), of_entry(owned, item))
    if field in _ORDERED and not _in_order([item[key] for item in wanted], list(there)):
        yield Difference(path, absent=False, owned=False)


def _whole(owned: Fields | None) -> bool:
    """Return whether a tree owns everything under it; Kubernetes replaces such a list or map as a whole."""
    return owned is not None and not owned


def _in_order(wanted: list[Any], observed: list[Any]) -> bool:
    return [name for name in observed if name in wanted] == [name for name in wanted if name in observed]


def _same(field: str, wanted: Any, observed: Any) -> bool:
    if observed is _ABSENT or observed is None:
        return not wanted and field not in _DEFAULT_IS_NOT_EMPTY
    if field in _OF_QUANTITIES:
        return quantity(wanted) == quantity(observed)
    return isinstance(wanted, bool) == isinstance(observed, bool) and bool(wanted == observed)


def _join(path: str, name: str) -> str:
    """Return `a.b`, or `a[b.c]` for names with dots."""
    if "." in name or "/" in name:
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name
