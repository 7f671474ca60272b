"""The pool file as this machine runs it: what the command line overrides, in a file of its own.

Every process reads one pool file. What `--policy` or `--engine` change must reach all of them, so the
changed pool is written beside the sockets. Without changes they read the user's own file.
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
    """What the command line says in place of the file. None: nothing."""

    policy: str | None = None
    engine_type: str | None = None
    order: str | None = None
    backup: str | None = None


def effective_pool(source: Path, overrides: Overrides, folder: Path) -> tuple[Path, Pool]:
    """The file to run, and what it says. folder: where a changed one is written. Raises PoolError."""
    pool = overridden_pool(source, overrides)
    if overrides == Overrides():
        return source, pool
    document = _overridden(source, overrides)
    _keep_files(document["spec"], source.resolve().parent)
    changed = folder / source.name
    changed.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))  # JSON is YAML
    return changed, load_pool(changed)


def overridden_pool(source: Path, overrides: Overrides) -> Pool:
    """The pool with what is said in place of the file. Raises PoolError, whose lines name the user's file."""
    pool = load_pool(source)
    return pool if overrides == Overrides() else parse_pool(_overridden(source, overrides), str(source))


def _overridden(source: Path, overrides: Overrides) -> dict[str, Any]:
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


def _keep_files(spec: dict[str, Any], folder: Path) -> None:
    """Keys and a measured time model are named from the user's file, not from the changed one."""
    measured = spec["engine"].get("timeModel", "")
    if measured.endswith(SUFFIX):
        spec["engine"]["timeModel"] = str(folder / measured)
    for application in spec.get("applications", ()):
        if "file" in application["keys"]:
            application["keys"]["file"] = str(folder / application["keys"]["file"])
