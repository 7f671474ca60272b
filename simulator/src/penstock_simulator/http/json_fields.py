"""Typed and bounded access to the fields of a JSON body. Errors name the field."""

import math
from collections.abc import Mapping
from typing import Any

import orjson
from penstock_runtime.openai_errors import ApiError


def bad_field(field: str, wanted: str) -> ApiError:
    """Return the error 400 for an invalid field."""
    return ApiError(400, f"{field}: {wanted}", param=field, code="invalid_value")


def read_object(data: bytes) -> dict[str, Any]:
    """Parse a body as a JSON object. Raises ApiError 400."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    return body


def integer(
    fields: Mapping[str, Any], name: str, low: int, high: int = 1 << 31, prefix: str = ""
) -> int | None:
    """Return an integer, or None if it is absent or null. Raises ApiError 400."""
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise bad_field(prefix + name, f"must be a whole number from {low} to {high}, not {_shown(value)}")
    return value


def number(
    fields: Mapping[str, Any], name: str, low: float, high: float = math.inf, prefix: str = ""
) -> float | None:
    """Return a finite number, or None if it is absent or null. Raises ApiError 400."""
    value = fields.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
        upto = f" to {high:g}" if math.isfinite(high) else ""
        raise bad_field(prefix + name, f"must be a number from {low:g}{upto}, not {_shown(value)}")
    return float(value)


def boolean(fields: Mapping[str, Any], name: str, prefix: str = "") -> bool:
    """Return a boolean; False if it is absent or null. Raises ApiError 400."""
    value = fields.get(name)
    if value is not None and type(value) is not bool:
        raise bad_field(prefix + name, f"must be true or false, not {_shown(value)}")
    return bool(value)


def text(fields: Mapping[str, Any], name: str, longest: int, prefix: str = "") -> str | None:
    """Return a string, or None if it is absent or null. Raises ApiError 400."""
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise bad_field(prefix + name, f"must be a string of 1 to {longest} characters, not {_shown(value)}")
    return value


def mapping(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an object; empty if it is absent or null. Raises ApiError 400."""
    value = fields.get(name)
    if value is not None and not isinstance(value, dict):
        raise bad_field(name, f"must be an object, not {_shown(value)}")
    return value or {}


def _shown(value: object) -> str:
    """Return the value as JSON, truncated to 60 characters."""
    written = orjson.dumps(value).decode()
    return written if len(written) <= 60 else written[:57] + "…"
