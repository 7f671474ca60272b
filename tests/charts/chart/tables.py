"""Tables in pages that people read, made from the files that machines read.

`make chart` writes them between the marks `<!-- begin NAME -->` and `<!-- end NAME -->`; tests say when
a page is stale.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from chart.rendered import CHART, Manifest

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
README = CHART / "README.md"

Documented = tuple[str, dict[str, Any]]


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its references resolved."""
    if "$ref" not in schema:
        return schema
    target: dict[str, Any] = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    return target | {key: value for key, value in schema.items() if key != "$ref"}


def documented(schema: dict[str, Any] = SCHEMA, path: str = "") -> Iterator[Documented]:
    """Return every value of the schema by its path, with its description."""
    for name, inner in schema.get("properties", {}).items():
        found, where = resolved(inner), f"{path}.{name}".removeprefix(".")
        yield where, found
        yield from documented(found, where)


def values_table() -> str:
    """One row for each value. Of images, all alike, only the default's name is listed."""
    rows = ["| value | default | what it is |", "|---|---|---|"]
    for path, schema in documented():
        if _has_a_row(path, schema):
            rows.append(f"| `{path}` | {_default(path, schema)} | {schema['description']} |")
    return "\n".join(rows)


def _has_a_row(path: str, schema: dict[str, Any]) -> bool:
    group = "properties" in schema and not _is_image(schema)
    return not (group or path == "global" or re.fullmatch(r"images\.\w+\.\w+", path))


def _is_image(schema: dict[str, Any]) -> bool:
    return "repository" in schema.get("properties", {})


def _default(path: str, schema: dict[str, Any]) -> str:
    value: Any = VALUES
    for name in path.split("."):
        value = value[name]
    if _is_image(schema):
        return f"`{value['repository']}`"
    return f"`{json.dumps(value)}`" if value not in ("", [], {}) else ""


def between(page: str, name: str) -> str:
    """Return the text between a page's marks. Raises ValueError where they are missing."""
    begin, end = _marks(name)
    inner = page[page.index(begin) + len(begin) : page.index(end)]
    return inner.strip("\n")


def replaced(page: str, name: str, table: str) -> str:
    """The page with another table between the marks."""
    begin, end = _marks(name)
    head, tail = page[: page.index(begin) + len(begin)], page[page.index(end) :]
    return f"{head}\n{table}\n{tail}"


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- begin {name} -->", f"<!-- end {name} -->"


def rights(rules: list[Manifest]) -> set[tuple[str, str, str]]:
    """Rules taken apart: (group, resource, verb); a resource of one name only as `resource:name`."""
    return {
        (group, f"{resource}:{name}" if name else resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def write(page: Path, name: str, table: str) -> None:
    """Update a page's table."""
    page.write_text(replaced(page.read_text(), name, table))


if __name__ == "__main__":
    write(README, "values", values_table())
