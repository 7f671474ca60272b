"""Checks of names in a pool that depend on each other: uniqueness, and references to tiers.

They work on the parsed document, not on the validated model, so that an invalid field elsewhere does not hide
a wrong reference, and one run reports all problems.
"""

from collections.abc import Iterator
from typing import Any

from penstock_pool.known import did_you_mean

Problem = tuple[str, str]
"""Location in the file, and the problem."""


def reference_problems(document: dict[str, Any]) -> Iterator[Problem]:
    """Yield duplicate names, and references to tiers that do not exist."""
    spec = _mapping(document.get("spec"))
    tiers, applications = _mappings(spec.get("tiers")), _mappings(spec.get("applications"))
    yield from _repeated("spec.tiers", tiers)
    yield from _repeated("spec.applications", applications)
    names = [name for _, tier in tiers if isinstance(name := tier.get("name"), str)]
    if not names or len(names) != len(spec["tiers"]):
        return  # a tier without a valid name is a problem of its own, and the reference may mean that tier
    for path, name in _tier_references(spec, applications):
        if isinstance(name, str) and name not in names:
            yield path, f'"{name}" is not a tier; one of {", ".join(names)}{did_you_mean(name, names)}'


def _tier_references(
    spec: dict[str, Any], applications: list[tuple[int, dict[str, Any]]]
) -> Iterator[tuple[str, Any]]:
    yield "spec.defaultTier", spec.get("defaultTier")
    for index, application in applications:
        yield f"spec.applications[{index}].tier", application.get("tier")
        allow = application.get("allow")
        for place, name in enumerate(allow if isinstance(allow, list) else []):
            yield f"spec.applications[{index}].allow[{place}]", name


def _repeated(path: str, items: list[tuple[int, dict[str, Any]]]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, item in items:
        name = item.get("name")
        if not isinstance(name, str):
            continue
        if name in first:
            yield f"{path}[{index}].name", f'"{name}" is already {path}[{first[name]}]; names are unique'
        first.setdefault(name, index)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[tuple[int, dict[str, Any]]]:
    items = value if isinstance(value, list) else []
    return [(index, item) for index, item in enumerate(items) if isinstance(item, dict)]
