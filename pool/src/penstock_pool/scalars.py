"""Types of a pool's scalar fields. None is coerced: a quoted "2" is text, not a number."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, Strict, WithJsonSchema
from pydantic_core import PydanticCustomError

from penstock_pool.cel import CelRule, documents
from penstock_pool.durations import LONGEST_TEXT, exact_duration, parse_duration_s

LARGEST_COUNT = 2**31 - 1
"""Largest value of Kubernetes' own counts."""

Count = Annotated[int, Strict(), Field(ge=1, le=LARGEST_COUNT)]
"""An integer of at least one."""

Replicas = Annotated[int, Strict(), Field(ge=0, le=1000)]
"""A number of running instances; zero is allowed."""

Flag = Annotated[bool, Strict()]
"""true or false; no other value is converted."""

Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
"""A finite number."""

NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
POOL_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
HOST = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
MEDIA_HOST = r"^(\*|(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)$"
LABEL_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
URL = r"^https?://[^\s/]+(/\S*)?$"

Name = Annotated[str, Field(pattern=NAME, max_length=63)]
"""A valid Kubernetes label value: lower-case letters, digits, inner dashes, at most 63 characters."""

PoolName = Annotated[str, Field(pattern=POOL_NAME, max_length=40)]
"""A shorter name, with room for suffixes such as Services'; it starts with a letter."""

ObjectName = Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)]
"""The name of another Kubernetes object."""

Host = Annotated[str, Field(pattern=HOST, max_length=253)]
"""A host name, with `*.` as a wildcard for its first part."""

MediaHost = Annotated[str, Field(pattern=MEDIA_HOST, max_length=253)]
"""A host name, with `*.` as a wildcard for its first parts, or `*` for any host."""

LabelName = Annotated[str, Field(pattern=LABEL_NAME, max_length=317)]
"""The name of a Kubernetes label or annotation."""

LabelValue = Annotated[str, Field(pattern=LABEL_VALUE, max_length=63)]
"""The value of a Kubernetes label."""

Url = Annotated[str, Field(pattern=URL, max_length=1024)]
"""An http or https URL."""

Text = Annotated[str, Field(min_length=1, max_length=1024)]
"""Text that is not empty."""


def wrong(message: str) -> PydanticCustomError:
    """Return a field's error with Penstock's own message, which has the given and the allowed values."""
    return PydanticCustomError("pool", "{message}", {"message": message})


def wrong_at(field: str, message: str) -> PydanticCustomError:
    """Return an error of an object about one of its fields. field: its name in the file."""
    return PydanticCustomError("pool", "{message}", {"message": message, "field": field})


def _seconds(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise wrong("is not a duration; write for example 800ms, 1.5s or 2m")
    try:
        return parse_duration_s(str(given))
    except ValueError as error:
        raise wrong(str(error)) from None


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise wrong("is zero; it has to be positive")
    return seconds


DURATION = r"^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$"
DURATION_FORMAT = "penstock-duration"
_WITHOUT_UNIT = "^[0-9]+([.][0-9]+)?$"
_IS_DURATION = f"self.matches('{DURATION}')"
_ANY_DURATION = (
    CelRule(f"!self.matches('{_WITHOUT_UNIT}')", '"{self}" has no unit; write {self}ms or {self}s'),
    CelRule(
        f"self.matches('{_WITHOUT_UNIT}') || {_IS_DURATION}",
        '"{self}" is not a duration; write for example 800ms, 1.5s or 2m',
    ),
    CelRule(
        f"!{_IS_DURATION} || duration(self) <= duration('24h')", '"{self}" is longer than a day; at most 24h'
    ),
)
_ABOVE_ZERO = CelRule(
    f"!{_IS_DURATION} || duration(self) > duration('0s')", '"{self}" is zero; it has to be positive'
)


def _duration_schema(*rules: CelRule) -> WithJsonSchema:
    limits = {"type": "string", "format": DURATION_FORMAT, "maxLength": LONGEST_TEXT}
    return WithJsonSchema({**limits, **documents(*rules)})


Window = Annotated[
    float,
    BeforeValidator(_seconds),
    PlainSerializer(exact_duration, return_type=str, when_used="json"),
    _duration_schema(*_ANY_DURATION),
]
"""A duration like `800ms`, parsed to seconds, at most a day; `0s` is allowed."""

Duration = Annotated[Window, AfterValidator(_positive), _duration_schema(*_ANY_DURATION, _ABOVE_ZERO)]
"""The same, but positive."""
