"""The common form of a stream's token events, by which most of them are forwarded without parsing.

Token events of a stream differ only in the text and the ids of their tokens:

    data: {"id":"x","choices":[{"delta":{"content":" a"},"finish_reason":null,"token_ids":[7]}]}\\n\\n
                               |before_text          |  |before_ids                        | |after_ids

An event of another form (finish reason, usage) does not match, and is parsed. Streams of the same form share
one function, so that the bytes that it compares stay in the processor's caches. On a busy machine that halves
its cost.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from penstock_routing.replicas.upstream_request import Relay

IDS = re.compile(rb'"token_ids": ?\[([^\]]*)\]')
TEXT = re.compile(rb'"(?:text|content|reasoning|reasoning_content)": ?"[^"]')
FINISH = re.compile(rb'"finish_reason": ?"')
_ALL_IDS = re.compile(rb', ?"(?:prompt_)?token_ids": ?(?:\[[^\]]*\]|null)')
_SHAPE = re.compile(
    rb'(data:.*?"(?:text|content|reasoning|reasoning_content)": ?")((?:[^"\\]|\\.)+)'
    rb'(".*?"token_ids": ?)\[[\d, ]+(\][^\d\[]*)'
)
"""Quotes inside JSON strings are escaped, so these match fields and never text."""

BEFORE_TEXT = 40
"""Bytes before a text that are compared: the name of its field and of the enclosing ones."""

SHAPES = 256
"""Most shapes that are cached."""


class EventRecord(Protocol):
    """The record of a stream's events. relay: writes them to the client. ids: text of their token ids."""

    relay: Relay
    ids: bytearray

    def record_textless(self, ids: bytes) -> None:
        """Record the ids of an event without text."""


EventShape = Callable[[EventRecord, bytes, int], bool]
"""Forwards events of this shape without ids, and records them. Returns False if they were not forwarded."""


def without_ids(event: bytes) -> bytes:
    """Return an event without its token ids."""
    return _ALL_IDS.sub(b"", event)


def shape_of(event: bytes, passed: bytes) -> EventShape | None:
    """Return the shape of an event with text and without finish reason. passed: the event without ids."""
    found = _SHAPE.fullmatch(event)
    if found is None or FINISH.search(event) or not passed.startswith(event[: found.end(2)]):
        return None
    head, before_ids, after_ids = found.group(1, 3, 4)
    return _shape(len(head), head[-BEFORE_TEXT:], before_ids, after_ids, passed[found.end(2) :])


@lru_cache(SHAPES)
def _shape(text_at: int, before_text: bytes, before_ids: bytes, after_ids: bytes, end: bytes) -> EventShape:
    """Return a shape.

    text_at: index at which the text begins. before_text: the bytes before it.
    before_ids: bytes from the end of the text to the bracket of the ids.
    after_ids: bytes after the ids, with neither digits nor another list.
    end: bytes after the text in the event without ids.
    """
    before = slice(text_at - len(before_text), text_at)
    two_events = 2 * text_at  # two events are at least this long before the text of the second

    def pass_on(record: EventRecord, data: bytes, tokens: int) -> bool:
        # `removesuffix` is the cheapest way to compare the constant parts.
        to_ids, _, from_ids = data.rpartition(b"[")
        begin = to_ids.removesuffix(before_ids)
        length = len(begin)
        if length >= two_events:
            return pass_several_on(record, data, tokens)
        if begin == to_ids or begin[before] != before_text or from_ids.removesuffix(after_ids) == from_ids:
            return False
        relay = record.relay
        if not relay(begin + end, tokens):
            return False
        if length > text_at:
            record.ids += from_ids
        else:
            record.record_textless(from_ids)
        return True

    def pass_several_on(record: EventRecord, data: bytes, tokens: int) -> bool:
        """Forward several events that were received together, as happens on a busy machine."""
        *events, rest = data.split(b"\n\n")
        parts = [event.rpartition(b"[") for event in events]
        begins = [to_ids.removesuffix(before_ids) for to_ids, _, _ in parts]
        ordinary = not rest and all(
            begin != to_ids
            and len(begin) < two_events
            and begin[before] == before_text
            and from_ids.endswith(last)
            for begin, (to_ids, _, from_ids) in zip(begins, parts, strict=True)
        )
        if not ordinary or not record.relay(end.join(begins) + end, tokens):
            return False
        for begin, (_, _, from_ids) in zip(begins, parts, strict=True):
            if len(begin) > text_at:
                record.ids += from_ids
            else:
                record.record_textless(from_ids)
        return True

    last = after_ids.removesuffix(b"\n\n")
    return pass_on
