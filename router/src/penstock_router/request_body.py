"""The few fields of a body that routing needs. The bytes themselves go on untouched."""

from dataclasses import dataclass
from typing import Any

import orjson
from penstock_runtime.openai_errors import ApiError


@dataclass(frozen=True, slots=True)
class Asked:
    """What the body asks for, as far as the router looks."""

    model: str
    stream: bool
    service_tier: str | None


def read_fields(raw: bytes) -> Asked:
    """The fields, checked. Raises ApiError (400) that names the one that is wrong."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _wrong(None, f"the body is not JSON: {error}", "invalid_json") from None
    if not isinstance(body, dict):
        raise _wrong(None, f"the body must be a JSON object, not {_kind(body)}", "invalid_json")
    if body.get("model") is None:
        raise _wrong("model", "'model' is missing", "missing_required_parameter")
    model = _typed(body, "model", str, "text")
    stream = _typed(body, "stream", bool, "true or false")
    service_tier = _typed(body, "service_tier", str, "text")
    return Asked(model, bool(stream), service_tier)


def _typed(body: dict[str, Any], name: str, kind: type, words: str) -> Any:
    value = body.get(name)
    if value is not None and not isinstance(value, kind):
        raise _wrong(name, f"'{name}' must be {words}, not {_kind(value)}", "invalid_type")
    return value


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    names = {str: "text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names[type(value)]


def _wrong(param: str | None, message: str, code: str) -> ApiError:
    return ApiError(400, message, param=param, code=code)
