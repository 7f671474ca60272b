"""What the token events of one stream have in common, so that most of them need no parsing.

An engine writes a token's event like the one before it, except for the text and the ids of its tokens:

    data: {"id":"x","choices":[{"delta":{"content":" a"},"finish_reason":null,"token_ids":[7]}]}\\n\\n
                               |before_text          |  |before_ids                        | |after_ids

An event of another form (a reason of the end, usage) does not match, and is read as a whole. Streams of the
same form share one function, so that the bytes that it compares stay in the processor's caches: on a busy
machine that is half of its cost.
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
"""Bytes that are compared before a text: its field's name and the enclosing ones."""

SHAPES = 256
"""Shapes that streams share."""


class EventRecord(Protocol):
    """The record of a stream's events. relay: writes them to the client. ids: text of their token ids."""

    relay: Relay
    ids: bytearray

    def record_textless(self, ids: bytes) -> None:
        """Note the ids of an event without text."""


EventShape = Callable[[EventRecord, bytes, int], bool]
"""Passes on events of this shape, without ids, and notes them; returns False where they have not passed."""


def without_ids(event: bytes) -> bytes:
    """Return an event as its client is to get it."""
    return _ALL_IDS.sub(b"", event)


def shape_of(event: bytes, passed: bytes) -> EventShape | None:
    """Return the shape of an event that has text and goes on. passed: it without ids."""
    found = _SHAPE.fullmatch(event)
    if found is None or FINISH.search(event) or not passed.startswith(event[: found.end(2)]):
        return None
    head, before_ids, after_ids = found.group(1, 3, 4)
    return _shape(len(head), head[-BEFORE_TEXT:], before_ids, after_ids, passed[found.end(2) :])


@lru_cache(SHAPES)
def _shape(text_at: int, before_text: bytes, before_ids: bytes, after_ids: bytes, end: bytes) -> EventShape:
    """Return a shape.

    text_at: where the text begins. before_text: some bytes before it.
    before_ids: from the end of the text to the bracket of the ids.
    after_ids: behind them, with neither digits nor another list.
    end: all that follows the text in the event without ids.
    """
    before = slice(text_at - len(before_text), text_at)
    two_events = 2 * text_at  # the text of the second one is behind

    def pass_on(record: EventRecord, data: bytes, tokens: int) -> bool:
        # What is known is taken off from the end: `removesuffix` is the cheapest way to compare it.
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
        """Pass on events that came at once, as they do on a busy machine."""
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
