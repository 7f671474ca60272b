"""Removes usage from a stream if only the sidecar has requested it.

Busy engines merge tokens into one event, so only usage has their number. If the client does not request it
(`stream_options.include_usage`), the sidecar does, and removes the additions to the stream: a last chunk
without choices, and in some engines a `"usage": null` in all other chunks. Everything else is unchanged.
"""

import re
from itertools import pairwise

import orjson
from penstock_runtime.engine.whole_events import WholeEvents

_USAGE = b'"usage"'

_NULL = re.compile(rb',\s*"usage":\s*null|"usage":\s*null\s*,')
"""Quotes inside JSON strings are escaped, so this matches a field and never text."""

_END = re.compile(rb"\r?\n\r?\n")


class UsageStrip:
    """Removes usage from one stream, and returns whole events."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events = WholeEvents()

    def feed(self, data: bytes) -> bytes:
        """Return the events that `data`, the next bytes of the stream, completes, without usage."""
        passed = self._events.feed(data)
        return passed if _USAGE not in passed else b"".join(map(_without_usage, _split_events(passed)))


def _split_events(data: bytes) -> list[bytes]:
    """Return the events, each with the blank line that ends it."""
    ends = [0, *(found.end() for found in _END.finditer(data))]
    if ends[-1] < len(data):
        ends.append(len(data))
    return [data[begin:end] for begin, end in pairwise(ends)]


def _without_usage(event: bytes) -> bytes:
    if _USAGE not in event or not event.startswith(b"data:"):
        return event
    try:
        chunk = orjson.loads(event[5:])
    except orjson.JSONDecodeError:
        return event
    counted = isinstance(chunk, dict) and isinstance(chunk.get("usage"), dict)
    if counted and not chunk.get("choices"):
        return b""
    return event if counted else _NULL.sub(b"", event)
