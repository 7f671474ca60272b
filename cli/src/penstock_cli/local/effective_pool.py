"""The pool file with overrides of the command line.

Every process reads one pool file, so a pool with overrides (`--policy`, `--engine`) is written to a temporary
file. Without overrides they read the user's file.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from penstock_pool import Pool, load_pool, parse_pool
from penstock_pool.document import read_document
from penstock_pool.serving_pool import KIND
from penstock_pool.time_models import SUFFIX


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values of the command line that override the file; None keeps the file's value."""

    policy: str | None = None
    engine_type: str | None = None
    order: str | None = None
    backup: str | None = None


def effective_pool(source: Path, overrides: Overrides, folder: Path) -> tuple[Path, Pool]:
    """Return the file to run and its pool. folder: for the file with overrides. Raises PoolError."""
    pool = overridden_pool(source, overrides)
    if overrides == Overrides():
        return source, pool
    document = _overridden_document(source, overrides)
    _absolute_paths(document["spec"], source.resolve().parent)
    changed = folder / source.name
    changed.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))  # JSON is YAML
    return changed, load_pool(changed)


def overridden_pool(source: Path, overrides: Overrides) -> Pool:
    """Return the pool with overrides. Raises PoolError, whose lines name the user's file."""
    pool = load_pool(source)
    if overrides == Overrides():
        return pool
    return parse_pool(_overridden_document(source, overrides), str(source))


def _overridden_document(source: Path, overrides: Overrides) -> dict[str, Any]:
    document: dict[str, Any] = read_document(source, KIND)
    _override(document["spec"], overrides)
    return document


def _override(spec: dict[str, Any], overrides: Overrides) -> None:
    if overrides.policy is not None:
        spec.setdefault("scheduling", {})["policy"] = overrides.policy
    if overrides.engine_type is not None:
        spec["engine"]["type"] = overrides.engine_type
    routing = {"order": overrides.order, "backup": overrides.backup}
    spec.setdefault("routing", {}).update({key: value for key, value in routing.items() if value is not None})


def _absolute_paths(spec: dict[str, Any], folder: Path) -> None:
    """Make paths of key files and time models absolute; they are relative to the user's file."""
    measured = spec["engine"].get("timeModel", "")
    if measured.endswith(SUFFIX):
        spec["engine"]["timeModel"] = str(folder / measured)
    for application in spec.get("applications", ()):
        if "file" in application["keys"]:
            application["keys"]["file"] = str(folder / application["keys"]["file"])
