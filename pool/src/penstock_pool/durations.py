"""Durations in Kubernetes' notation: `800ms`, `1.5s`, `2m`, `1m30s`.

A number without a unit is rejected with a suggestion of the likely unit: 50 probably means milliseconds, and
0.05 seconds.
"""

import re
from decimal import Decimal

UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
LONGEST_S = 24 * 3600.0
"""Upper limit in seconds of any request, timeout or drain; a longer one is an error."""

LONGEST_TEXT = 32
"""Most characters of a duration."""

_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)", re.ASCII)
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


def parse_duration_s(text: str) -> float:
    """Return the seconds of a duration such as `800ms`, `1.5s`, `2m` or `1m30s`.

    Raises ValueError with the given text and valid ones.
    """
    if len(text) > LONGEST_TEXT or not _WHOLE.fullmatch(text):
        raise ValueError(_problem(text))
    seconds = sum(float(number) * UNIT_S[unit] for number, unit in _PART.findall(text))
    if seconds > LONGEST_S:
        raise ValueError(f'"{text}" is longer than a day; at most 24h')
    return seconds


def format_duration(seconds: float) -> str:
    """Return a readable duration: `5ms`, `1.5s`, `60s`, `5m`."""
    if seconds >= 120 and seconds % 60 == 0:
        return f"{seconds / 60:g}m"
    return f"{seconds:g}s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:g}ms"


def exact_duration(seconds: float) -> str:
    """Return a duration that is parsed to exactly the same number."""
    return f"{Decimal(repr(float(seconds))).normalize():f}s"


def _problem(text: str) -> str:
    if not _NUMBER.fullmatch(text):
        return f'"{text}" is not a duration; write for example 800ms, 1.5s or 2m'
    number = float(text)
    if number < 10:
        return f'"{text}" has no unit; write {number:.10g}s or {number * 1000:.10g}ms'
    return f'"{text}" has no unit; write {number:.10g}ms or {number / 1000:.10g}s'
