"""A record of the tokens that a stream has sent to its client, for a continuation.

The engine is asked for token ids (`return_token_ids`). They are removed from each event before the client
gets it, and kept here as bytes, which are parsed only if the stream is continued.

A continuation begins after the last event with text. Later tokens have produced no text, because their
character is incomplete, and a prompt that ends inside a character would be continued with different text.
"""

import re
from types import MethodType
from typing import Any

import orjson
from penstock_routing.replicas.upstream_request import Relay

from penstock_router.moving.event_shape import FINISH, IDS, TEXT, EventShape, shape_of, without_ids

MOST_BYTES = 2 << 20
"""Most bytes that are read at once, such as one long event. A stream with more is forwarded unchanged."""

LAST_EVENT = b"data: [DONE]"

_OBJECT = re.compile(rb"data: ?\{")
_NUMBER = re.compile(rb"\d+")
_EVENT_IDS = re.compile(rb"\d[\d, ]*")
_PROMPT_IDS = re.compile(rb'"prompt_token_ids": ?(\[[^\]]*\])')
_CONTENT = re.compile(rb'"(?:text|content)": ?"[^"]')
"""Quotes inside JSON strings are escaped, so these match fields and never text."""


class Transcript:
    """The tokens of one answer that the client has received, from all replicas that generated it.

    opaque: the stream has no token ids, so it is forwarded unchanged and cannot be continued.
    first_event: the first event with an object, without ids; empty before it.
    done: `[DONE]` was received. usage_sent: the final usage was received.
    finished: the client has the finish reason.
    thinks: the last text was part of the model's thinking.
    relay, ids: as in `event_shape.EventRecord`.
    failure: the event with which the engine has reported a failure. It is not sent to the client.
    """

    __slots__ = (
        "_kept",
        "_prompt_ids",
        "_rest",
        "_shape",
        "_textless_begin",
        "_textless_end",
        "done",
        "failure",
        "finished",
        "first_event",
        "ids",
        "opaque",
        "relay",
        "thinks",
        "usage_sent",
    )

    def __init__(self) -> None:
        self.opaque = self.done = self.usage_sent = self.finished = self.thinks = False
        self.first_event = self.failure = b""
        self.relay: Relay = _discard
        self.ids = bytearray()  # each event's ids end with a bracket
        self._textless_begin = self._textless_end = 0  # range in `ids` of the last events without text
        self._shape: EventShape | None = None
        self._prompt_ids = self._rest = b""
        self._kept: list[int] = []

    @property
    def begun(self) -> bool:
        """Whether the client has received an event."""
        return bool(self.first_event)

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt's tokens; empty until received."""
        ids: list[int] = orjson.loads(self._prompt_ids or b"[]")
        return ids

    def relay_through(self, relay: Relay) -> Relay | None:
        """Return a function that forwards ordinary events until the next `read`; None if there is none.

        An ordinary event differs from the last one that was read only by the text and ids of its tokens.
        """
        if self._shape is None or self._rest:
            return None
        self.relay = relay
        return MethodType(self._shape, self)

    def record_textless(self, ids: bytes) -> None:
        """Record the ids of an event without text."""
        if self._textless_end != len(self.ids):  # the event before it had text
            self._textless_begin = len(self.ids)
        self.ids += ids
        self._textless_end = len(self.ids)

    def read(self, data: bytes) -> list[bytes]:
        """Record the events that `data` completes, and return them without ids."""
        if self.opaque:
            return [data]
        data = self._rest + data
        if b"\r\n\r\n" in data or len(data) > MOST_BYTES:
            return self._give_up(data)
        *events, self._rest = data.split(b"\n\n")
        passed: list[bytes] = []
        for event in events:
            if self.failure or event.startswith(b'data: {"error"'):
                self.failure = self.failure or event + b"\n\n"
                continue
            passed.append(self._read(event + b"\n\n"))
        return passed

    def take_rest(self) -> bytes:
        """Return the bytes of an incomplete event at a stream's end, once."""
        rest, self._rest = self._rest, b""
        return rest

    def kept_ids(self) -> list[int]:
        """Return the answer's tokens up to the last one with text. A continuation begins after it."""
        return [*self._kept, *map(int, _NUMBER.findall(self._ids_with_text()))]

    def tokens(self) -> int:
        """Return how many tokens the answer has so far, including those without text."""
        return len(self._kept) + len(_NUMBER.findall(self.ids))

    def uncertain_tokens(self) -> int:
        """Return how many of the last kept tokens may have no text yet: an event may have several."""
        events = _EVENT_IDS.findall(self._ids_with_text())
        return events[-1].count(b",") if events else 0

    def continue_after(self, kept_ids: list[int]) -> None:
        """Continue with another replica's stream, which begins after these tokens."""
        self._kept, self.ids = kept_ids, bytearray()
        self._textless_begin = self._textless_end = 0
        self._rest = self.failure = b""
        self._shape = None

    def head(self) -> dict[str, Any]:
        """Return the fields that all events of the stream share."""
        event = orjson.loads(self.first_event[5:])
        return {name: event[name] for name in ("id", "object", "created", "model") if name in event}

    def _ids_with_text(self) -> bytearray:
        """Return the ids up to those of the last event with text."""
        return self.ids[: self._textless_begin] if self._textless_end == len(self.ids) else self.ids

    def _read(self, event: bytes) -> bytes:
        """Record a whole event, and return it without ids."""
        if event.startswith(LAST_EVENT):
            self.done = True
            return event
        passed = without_ids(event)
        if not _OBJECT.match(event):  # a comment, or an event with other fields, which is not continued
            self.opaque = self.opaque or passed != event or TEXT.search(event) is not None
            return passed
        prompt = _PROMPT_IDS.search(event)
        if prompt and not self._prompt_ids:
            self._prompt_ids = prompt[1]
        self.first_event = self.first_event or passed
        self._record_tokens(event, passed)
        self.finished = self.finished or FINISH.search(event) is not None
        self.usage_sent = self.usage_sent or b'"usage":{' in event
        return passed

    def _record_tokens(self, event: bytes, passed: bytes) -> None:
        """Record an event's tokens."""
        ids, text = IDS.search(event), TEXT.search(event)
        if ids is None:
            self.opaque = self.opaque or text is not None
            return
        if text is None:
            self.record_textless(ids[1] + b"]")
            return
        self.ids += ids[1] + b"]"
        self.thinks = _CONTENT.search(event) is None
        self._shape = shape_of(event, passed)

    def _give_up(self, data: bytes) -> list[bytes]:
        """Forward this data and all later data unchanged."""
        self.opaque, self._rest = True, b""
        return [data]


def _discard(data: bytes, tokens: int) -> bool:
    return False
