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
from penstock_operator.reconcile.managed_fields import (
    Fields,
    owned_fields,
    subtree_of_entry,
    subtree_of_field,
)

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

_ORDERED_LISTS = frozenset({"initContainers"})
"""Lists by key whose order matters."""

_WHOLE_MAPS = frozenset(
    {"selector", "matchLabels", "podSelector", "namespaceSelector", "labelSelector", "nodeSelector"}
)
"""Maps that are compared as a whole: an added entry changes what a selector selects."""

_QUANTITY_MAPS = frozenset({"limits", "requests", "sizeLimit", "averageValue"})


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


def differences(desired: Manifest, observed: Manifest) -> tuple[Difference, ...]:
    """Return the fields of `desired` that differ in `observed`. Without managedFields, none is owned."""
    return tuple(_differences("", "", desired, observed, owned_fields(observed)))


def drift(desired: Manifest, observed: Manifest) -> tuple[str, ...]:
    """Return the paths of fields that another manager has changed, in order."""
    return tuple(each.path for each in differences(desired, observed) if not each.owned)


def _differences(
    path: str, field: str, desired: Any, observed: Any, owned: Fields | None
) -> Iterator[Difference]:
    if isinstance(desired, dict) and isinstance(observed, dict):
        if field in _WHOLE_MAPS and observed.keys() - desired.keys():
            yield Difference(path, absent=False, owned=_owned_as_whole(owned))
        for name, value in desired.items():
            inner = field if field in _QUANTITY_MAPS else name
            yield from _differences(
                _join(path, name), inner, value, observed.get(name, _ABSENT), subtree_of_field(owned, name)
            )
    elif isinstance(desired, list) and isinstance(observed, list):
        yield from _list_differences(path, field, desired, observed, owned)
    elif not _equal(field, desired, observed):
        absent = (observed is _ABSENT or observed is None) and field not in _QUANTITY_MAPS
        yield Difference(path, absent, owned=owned is not None)


def _list_differences(
    path: str, field: str, desired: list[Any], observed: list[Any], owned: Fields | None
) -> Iterator[Difference]:
    key = list_key(field, desired)
    if key is None:
        if len(desired) != len(observed):
            yield Difference(path, absent=False, owned=_owned_as_whole(owned))
            return
        for index, (desired_item, observed_item) in enumerate(zip(desired, observed, strict=True)):
            yield from _differences(
                f"{path}[{index}]", field, desired_item, observed_item, subtree_of_entry(owned, desired_item)
            )
        return
    by_key = {item.get(key): item for item in observed if isinstance(item, dict)}
    for item in desired:
        name = item[key]
        yield from _differences(
            f"{path}[{name}]", "", item, by_key.get(name, _ABSENT), subtree_of_entry(owned, item)
        )
    if field in _ORDERED_LISTS and not _same_order([item[key] for item in desired], list(by_key)):
        yield Difference(path, absent=False, owned=False)


def _owned_as_whole(owned: Fields | None) -> bool:
    """Return whether a tree owns everything under it; Kubernetes replaces such a list or map as a whole."""
    return owned is not None and not owned


def _same_order(desired: list[Any], observed: list[Any]) -> bool:
    return [name for name in observed if name in desired] == [name for name in desired if name in observed]


def _equal(field: str, desired: Any, observed: Any) -> bool:
    if observed is _ABSENT or observed is None:
        return not desired and field not in _DEFAULT_IS_NOT_EMPTY
    if field in _QUANTITY_MAPS:
        return quantity(desired) == quantity(observed)
    return isinstance(desired, bool) == isinstance(observed, bool) and bool(desired == observed)


def _join(path: str, name: str) -> str:
    """Return `a.b`, or `a[b.c]` for names with dots."""
    if "." in name or "/" in name:
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name
