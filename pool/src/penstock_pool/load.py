"""Loads and validates a pool from a file or a parsed document."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from penstock_pool.document import DocumentError, read_document
from penstock_pool.problems import schema_problems, shown
from penstock_pool.references import Problem, reference_problems
from penstock_pool.serving_pool import API_VERSION, KIND, Pool
from penstock_pool.time_models import SUFFIX, TimeModelError, read_time_model


class PoolError(Exception):
    """A pool that cannot be used.

    lines: one for each invalid field, like
        `pool.yaml: spec.tiers[1].slo.tpot: "50" has no unit; write 50ms or 0.05s`.
    """

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def load_pool(path: Path) -> Pool:
    """Return the pool in a file. Raises PoolError with one line per problem."""
    try:
        document = read_document(path, KIND)
    except DocumentError as error:
        raise PoolError([f"{path}: {error}"]) from None
    return _with_time_model_path(parse_pool(document, str(path)), path)


def parse_pool(document: Any, source: str) -> Pool:
    """Return the pool in a document. source: prefix of every line of a PoolError."""
    if document is None:
        raise PoolError([f"{source}: is empty; a pool starts with apiVersion: {API_VERSION}, kind: {KIND}"])
    if not isinstance(document, dict):
        raise PoolError([f"{source}: is {shown(document)}; a pool has apiVersion, kind, metadata, spec"])
    problems = _wrong_type(document) or _wrong_fields(document)
    if problems:
        raise PoolError([f"{source}: {where}: {what}" for where, what in problems])
    return Pool.model_validate(document)


def _with_time_model_path(pool: Pool, path: Path) -> Pool:
    """Return the pool with the path of its measured time model. Raises PoolError if the file is invalid."""
    engine = pool.spec.engine
    if not engine.time_model.endswith(SUFFIX):
        return pool
    file = path.parent / engine.time_model
    try:
        read_time_model(file, pool.spec.model.name)
    except TimeModelError as error:
        raise PoolError([f"{path}: spec.engine.timeModel: {file} {error}"]) from None
    named = engine.model_copy(update={"time_model": str(file.absolute())})
    return pool.model_copy(update={"spec": pool.spec.model_copy(update={"engine": named})})


def _wrong_type(document: dict[str, Any]) -> list[Problem]:
    """Return only problems of `apiVersion` and `kind`, because the fields of another kind may be valid."""
    wanted = {"apiVersion": API_VERSION, "kind": KIND}
    return [
        (field, _type_problem(document, field, value))
        for field, value in wanted.items()
        if document.get(field) != value
    ]


def _type_problem(document: dict[str, Any], field: str, wanted: str) -> str:
    if field not in document:
        return f"missing; write {field}: {wanted}"
    return f"{shown(document[field])} is not supported; write {wanted}"


def _wrong_fields(document: dict[str, Any]) -> list[Problem]:
    problems: list[Problem] = []
    try:
        Pool.model_validate(document)
    except ValidationError as error:
        problems.extend(schema_problems(error, Pool))
    return problems + list(reference_problems(document))
