"""The kinds of value a pool's fields have. None is coerced: a quoted "2" is text, not a number."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, Strict, WithJsonSchema
from pydantic_core import PydanticCustomError

from penstock_pool.durations import parse_duration_s

Count = Annotated[int, Strict(), Field(ge=1)]
"""A whole number of at least one."""

Flag = Annotated[bool, Strict()]
"""true or false, nothing that resembles them."""

Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
"""A finite number."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
"""A name that is also a Kubernetes label: lower-case letters, digits, inner dashes, at most 63."""

Text = Annotated[str, Field(min_length=1)]
"""Text that says something."""


def wrong(message: str) -> PydanticCustomError:
    """A field's error in our own words, which already say what was given and what is allowed."""
    return PydanticCustomError("pool", "{message}", {"message": message})


def wrong_at(field: str, message: str) -> PydanticCustomError:
    """The same, found by the object around the field it blames. field: as written in the file."""
    return PydanticCustomError("pool", "{message}", {"message": message, "field": field})


def _seconds(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise wrong("is no duration; write for example 800ms, 1.5s or 2m")
    try:
        return parse_duration_s(str(given))
    except ValueError as error:
        raise wrong(str(error)) from None


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise wrong("is zero; it has to be positive")
    return seconds


Duration = Annotated[
    float,
    BeforeValidator(_seconds),
    AfterValidator(_positive),
    WithJsonSchema({"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$"}),
]
"""Written like `800ms`, read as seconds, positive, at most a day."""
