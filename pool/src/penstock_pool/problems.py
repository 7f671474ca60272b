"""Problems of a document, one line per field: where, the given value, valid values."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from penstock_pool.known import did_you_mean
from penstock_pool.references import Problem
from penstock_pool.scalars import (
    HOST,
    LABEL_NAME,
    LABEL_VALUE,
    MEDIA_HOST,
    NAME,
    OBJECT_NAME,
    POOL_NAME,
    URL,
)

Location = Sequence[str | int]
NAME_RULE = "lower-case letters, digits and inner dashes"

PATTERNS = {
    NAME: f"is not a valid name; {NAME_RULE}, at most 63",
    POOL_NAME: f"is not a valid name; {NAME_RULE}, a letter first, at most 40",
    OBJECT_NAME: f"is not a valid name; {NAME_RULE}, dots between parts",
    MEDIA_HOST: "is not a host name; write for example images.example.com, *.example.com or *",
    HOST: "is not a host name; write for example llama3.example.com",
    LABEL_NAME: "is not a label name; write for example release or example.com/team",
    LABEL_VALUE: "is not a label value; letters, digits, inner dashes, dots and underscores",
    URL: "is not a URL; write for example http://prometheus.monitoring:9090",
}
"""Descriptions of the patterns that a text may have to match."""

RULES = {
    "string_type": "is not text; put it in quotes",
    "int_type": "is not a whole number",
    "float_type": "is not a number",
    "finite_number": "is not a finite number",
    "bool_type": "is neither true nor false",
    "tuple_type": "is not a list",
    "dict_type": "is not a mapping",
    "too_short": "is empty; at least one entry",
    "too_long": "has {actual_length} entries; at most {max_length}",
    "string_too_short": "is empty; at least one character",
    "string_too_long": "is too long; at most {max_length} characters",
    "greater_than": "is too small; must be above {gt}",
    "greater_than_equal": "is too small; at least {ge}",
    "less_than": "is too large; must be below {lt}",
    "less_than_equal": "is too large; at most {le}",
}
"""Descriptions of valid values by pydantic's error types."""

FOLLOW_UP_ERRORS = {"default_factory_not_called"}
"""Error types that follow from another error, which has its own line."""


def schema_problems(error: ValidationError, root: type[BaseModel]) -> Iterator[Problem]:
    """Yield a problem for each field that pydantic rejected."""
    for detail in error.errors(include_url=False):
        if detail["type"] not in FOLLOW_UP_ERRORS:
            location = [part for part in detail["loc"] if not _is_tag(part)]
            field = detail.get("ctx", {}).get("field")
            at = [*location, field] if field else location
            yield dotted(at), _message(detail, location, root)


def dotted(location: Location) -> str:
    """Return a location as `spec.tiers[1].slo.tpot`."""
    steps = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(steps).removeprefix(".")


def shown(value: Any) -> str:
    """Format a value for an error line: scalars as JSON, containers by their type."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


def _message(detail: ErrorDetails, location: Location, root: type[BaseModel]) -> str:
    kind, given, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "pool":
        return _own_message(detail)
    if kind == "missing":
        return _missing(_field_at(root, location))
    if kind == "extra_forbidden":
        return _unknown(str(location[-1]), _model_at(root, location[:-1]))
    if kind in {"model_type", "model_attributes_type"}:
        return f"{shown(given)} is not a mapping of {_fields(_model_at(root, location))}"
    if kind == "literal_error":
        allowed = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        return f"{shown(given)} is not known; one of {', '.join(allowed)}{did_you_mean(str(given), allowed)}"
    rule = PATTERNS[context["pattern"]] if kind == "string_pattern_mismatch" else RULES.get(kind)
    return f"{shown(given)}: {detail['msg']}" if rule is None else f"{shown(given)} {rule.format(**context)}"


def _own_message(detail: ErrorDetails) -> str:
    message = str(detail["msg"])
    whole = message.startswith('"') or message.startswith("missing") or "field" in detail.get("ctx", {})
    return message if whole else f"{shown(detail['input'])} {message}"


def _missing(field: FieldInfo | None) -> str:
    if field is None or not field.description:
        return "missing"
    description = field.description[0].lower() + field.description[1:].rstrip(".")
    example = f"; for example {field.examples[0]}" if field.examples else ""
    return f"missing; {description}{example}"


def _unknown(name: str, model: type[BaseModel] | None) -> str:
    if model is None:
        return "unknown field"
    aliases = [str(field.alias) for field in model.model_fields.values()]
    return f"unknown field{did_you_mean(name, aliases) or f'; fields here are {_fields(model)}'}"


def _fields(model: type[BaseModel] | None) -> str:
    return "fields" if model is None else ", ".join(str(f.alias) for f in model.model_fields.values())


def _is_tag(part: str | int) -> bool:
    """Return whether pydantic added this part for a union or a mapping's key, so that the file lacks it."""
    return isinstance(part, str) and (part.startswith("<") or part == "[key]")


def _field_at(root: type[BaseModel], location: Location) -> FieldInfo | None:
    model = _model_at(root, location[:-1])
    fields = {} if model is None else model.model_fields
    return next((field for field in fields.values() if field.alias == location[-1]), None)


def _model_at(root: type[BaseModel], location: Location) -> type[BaseModel] | None:
    model: type[BaseModel] | None = root
    for part in location:
        if isinstance(part, int) or model is None:
            continue
        field = next((f for f in model.model_fields.values() if f.alias == part), None)
        model = None if field is None else _model_in(field.annotation)
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model class in an annotation, inside lists, unions and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in found if model is not None), None)
