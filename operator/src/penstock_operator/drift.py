"""Where an object differs from what was asked for.

The API server fills in defaults, other controllers add fields, and quantities come back in another writing.
So what is compared is what was asked for and nothing else: everything that the manifest says has to be there,
whatever else is there too. Lists that are maps are compared entry by entry; all other lists whole, because
that is how server-side apply owns them.

A field asked for with an empty value (`{}`, `[]`, `""`, 0, false) is also met by its absence: the server
drops many of those. Not so the few whose absence means something else.
"""

from collections.abc import Iterator
from typing import Any

from penstock_operator.list_keys import list_key
from penstock_operator.quantity import quantity

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


def drift(wanted: Any, seen: Any) -> tuple[str, ...]:
    """Paths of the fields of `wanted` that `seen` does not have so, in order; empty where it has them all."""
    return tuple(_differences("", "", wanted, seen))


def _differences(path: str, field: str, wanted: Any, seen: Any) -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(seen, dict):
        if field in _WHOLE_MAPS and seen.keys() - wanted.keys():
            yield path
        for name, value in wanted.items():
            inner = field if field in _OF_QUANTITIES else name
            yield from _differences(_join(path, name), inner, value, seen.get(name, _ABSENT))
    elif isinstance(wanted, list) and isinstance(seen, list):
        yield from _list_differences(path, field, wanted, seen)
    elif not _same(field, wanted, seen):
        yield path


def _list_differences(path: str, field: str, wanted: list[Any], seen: list[Any]) -> Iterator[str]:
    key = list_key(field, wanted)
    if key is None:
        if len(wanted) != len(seen):
            yield path
            return
        for index, (one, other) in enumerate(zip(wanted, seen, strict=True)):
            yield from _differences(f"{path}[{index}]", field, one, other)
        return
    there = {item.get(key): item for item in seen if isinstance(item, dict)}
    for item in wanted:
        yield from _differences(f"{path}[{item[key]}]", "", item, there.get(item[key], _ABSENT))
    if field in _ORDERED and not _in_order([item[key] for item in wanted], list(there)):
        yield path


def _in_order(wanted: list[Any], seen: list[Any]) -> bool:
    return [name for name in seen if name in wanted] == [name for name in wanted if name in seen]


def _same(field: str, wanted: Any, seen: Any) -> bool:
    if seen is _ABSENT or seen is None:
        return not wanted and field not in _DEFAULT_IS_NOT_EMPTY
    if field in _OF_QUANTITIES:
        return quantity(wanted) == quantity(seen)
    return isinstance(wanted, bool) == isinstance(seen, bool) and bool(wanted == seen)


def _join(path: str, name: str) -> str:
    """`a.b`, and `a[b.c]` for names that have dots of their own."""
    if "." in name or "/" in name:
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name
