"""Compares an object with the manifest that was applied.

The API server fills in defaults, other controllers add fields, and quantities come back in another notation.
So what is compared is what was asked for and nothing else: everything that the manifest says has to be there,
whatever else is there too. Lists that are maps are compared entry by entry; all other lists whole, because
that is how server-side apply owns them.

A difference is drift where another manager has taken the field. Where the field is still the operator's, the
value came with the operator's own write: a mutating webhook or policy has changed what was sent, such as an
image's registry, and would do so again. Such a field is left as it is.

A field asked for with an empty value (`{}`, `[]`, `""`, 0, false) is also met by its absence: the server
drops many of those. Not so the few whose absence means something else.
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
"""Fields that, when absent, are taken to be something else than empty."""

_ORDERED = frozenset({"initContainers"})
"""Lists by key whose order matters too."""

_WHOLE_MAPS = frozenset(
    {"selector", "matchLabels", "podSelector", "namespaceSelector", "labelSelector", "nodeSelector"}
)
"""Maps that are owned whole: one more condition and a selector selects something else."""

_OF_QUANTITIES = frozenset({"limits", "requests", "sizeLimit", "averageValue"})


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of an object that is not as it was asked for.

    absent: the object has no such field. A limit or request that is gone counts as changed: adjusters of
        resources remove them, and the API server never does.
    owned: the field is still the operator's, so that no other manager wrote this value: admission changed it,
        or the API server does not know it.
    """

    path: str
    absent: bool
    owned: bool


def differences(wanted: Manifest, observed: Manifest) -> tuple[Difference, ...]:
    """Return the fields of `wanted` that differ in `observed`. Without managedFields, none is owned."""
    return tuple(_differences("", "", wanted, observed, owned_fields(observed)))


def drift(wanted: Manifest, observed: Manifest) -> tuple[str, ...]:
    """Paths of the fields that somebody else has changed, in order; empty where nobody has."""
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
    """Whether a tree owns everything under it: Kubernetes replaces such a list or map whole."""
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
    """`a.b`, and `a[b.c]` for names that have dots of their own."""
    if "." in name or "/" in name:
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name
