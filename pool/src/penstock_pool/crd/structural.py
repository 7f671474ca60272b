"""Converts the JSON schema of the models to a structural schema, the form that Kubernetes accepts.

A structural schema has no references, unions or nulls: every field has one type, in place. Models express
unions by `WithJsonSchema`. `kubectl explain` does not show examples, so the first one is added to the
description.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from penstock_pool.durations import format_duration
from penstock_pool.scalars import DURATION_FORMAT

Schema = dict[str, Any]

DROPPED = {"title", "examples", "propertyNames", "default", "description"}
"""Keywords that Kubernetes does not read, or that are generated here."""


def structural(schema: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    """Return a schema with all of its references resolved in place."""
    whole = _one_type(schema, definitions)
    built: Schema = {}
    if about := _description(whole):
        built["description"] = about
    for key, value in whole.items():
        if key not in DROPPED and value != DURATION_FORMAT:
            built.update(_TRANSLATED[key](value, definitions) if key in _TRANSLATED else {key: value})
    if whole.get("type") == "integer":
        built["format"] = "int32" if "maximum" in built else "int64"
    return built | _default(whole, built)


def _one_type(schema: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    """Return the schema without references and null; absent fields are just absent."""
    whole = dict(schema)
    if "$ref" in whole:
        target = definitions[whole.pop("$ref").removeprefix("#/$defs/")]
        return _one_type({**target, **whole}, definitions)
    kinds = [kind for kind in whole.pop("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        return _one_type({**kinds[0], **whole}, definitions)
    return whole | ({"anyOf": kinds} if kinds else {})


def _description(whole: Schema) -> str:
    """Return the description, with an example if it differs from the default."""
    described = str(whole.get("description", ""))
    examples = whole.get("examples", ())
    if not examples or _default(whole, {}) == {"default": examples[0]}:
        return described
    shown = examples[0] if isinstance(examples[0], str) else json.dumps(examples[0])
    return f"{described} Like `{shown}`."


def _default(whole: Schema, built: Schema) -> Schema:
    """Return the default as in a file; for an object, its fields' defaults apply."""
    default = whole.get("default")
    if default is None or default in ([], {}):
        return {}
    if isinstance(default, dict):
        fields = built["properties"].items()
        return {"default": {name: field["default"] for name, field in fields if "default" in field}}
    if whole.get("format") == DURATION_FORMAT:
        return {"default": format_duration(default)}
    return {"default": default}


def _properties(value: Mapping[str, Schema], definitions: Mapping[str, Schema]) -> Schema:
    return {"properties": {name: structural(field, definitions) for name, field in value.items()}}


def _items(value: Schema, definitions: Mapping[str, Schema]) -> Schema:
    return {"items": structural(value, definitions)}


def _values(value: Schema | bool, definitions: Mapping[str, Schema]) -> Schema:
    """Return the schema of a mapping's values.

    Kubernetes assumes `false`: other fields are rejected or dropped.
    """
    return {"additionalProperties": structural(value, definitions)} if isinstance(value, dict) else {}


def _named_values(value: Mapping[str, Schema], definitions: Mapping[str, Schema]) -> Schema:
    """Return the values' schema of a mapping with a key pattern, which Kubernetes cannot check."""
    (kind,) = value.values()
    return _values(kind, definitions)


def _above(value: float, _: Mapping[str, Schema]) -> Schema:
    return {"minimum": value, "exclusiveMinimum": True}


def _below(value: float, _: Mapping[str, Schema]) -> Schema:
    return {"maximum": value, "exclusiveMaximum": True}


_TRANSLATED: dict[str, Callable[[Any, Mapping[str, Schema]], Schema]] = {
    "properties": _properties,
    "items": _items,
    "additionalProperties": _values,
    "patternProperties": _named_values,
    "exclusiveMinimum": _above,
    "exclusiveMaximum": _below,
    "const": lambda value, _: {"enum": [value]},
}
