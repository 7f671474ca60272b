"""A record of what a stream has sent to its client, as far as a continuation needs it.

The engine is asked for token ids (`return_token_ids`), which are removed from each event before the client
gets it, and kept here. An event of one token is only searched and recorded. Records are parsed in batches and
reduced to ids, so a stream holds some bytes per token and at most `BATCH_EVENTS` events.

A continuation begins behind the last event that had text. Tokens after it have produced no text, because a
character is incomplete; a prompt that ends inside a character would be continued with different text.
"""

import re
from typing import Any

import orjson

BATCH_EVENTS = 32
"""Events that are parsed together."""

EVENT_BYTES = 1 << 20
"""Longest event that is looked at. A stream with a longer one is passed on as it is."""

LAST_EVENT = b"data: [DONE]"

_BEGIN = b',"token_ids":['
_IDS = re.compile(rb'"token_ids": ?\[([^\]]*)\]')
_PROMPT_IDS = re.compile(rb'"prompt_token_ids": ?(\[[^\]]*\])')
_ALL_IDS = re.compile(rb', ?"(?:prompt_)?token_ids": ?(?:\[[^\]]*\]|null)')
_TEXT = re.compile(rb'"(?:text|content|reasoning|reasoning_content)": ?"[^"]')
_CONTENT = re.compile(rb'"(?:text|content)": ?"[^"]')
_FINISH = re.compile(rb'"finish_reason": ?"')
"""Quotes inside JSON strings are escaped, so these match fields and never text."""


class Transcript:
    """Of one answer, over all replicas that have written it.

    opaque: the stream does not tell what a continuation needs, and is passed on untouched.
    first_event: the first one, without ids; empty before it.
    prompt_ids: empty until received.
    done: `[DONE]` was received. usage_sent: the final usage was received.
    failure: the event by which the engine has reported a failure; it and what follows are not for the client.
    """

    def __init__(self) -> None:
        self.opaque = self.done = self.usage_sent = False
        self.first_event = b""
        self.prompt_ids: list[int] = []
        self.failure = b""
        self._kept: list[int] = []
        self._ids = bytearray()
        self._events: list[bytes] = []
        self._rest = b""
        self._finished = self._thinks = self._has_prompt_ids = False

    @property
    def begun(self) -> bool:
        """Whether the client has an event."""
        return bool(self.first_event)

    @property
    def finished(self) -> bool:
        """Whether the client has the reason why the answer ended."""
        return self._finished or any(map(_FINISH.search, self._events[-1:]))

    @property
    def thinks(self) -> bool:
        """Whether the last text was of the model's thinking."""
        texts = [event for event in self._events if _TEXT.search(event)]
        return _CONTENT.search(texts[-1]) is None if texts else self._thinks

    def token_event(self, data: bytes) -> bytes | None:
        """Return an ordinary event without its ids, still to be noted; None for any other bytes."""
        begin = data.find(_BEGIN)
        if begin < 0 or self._rest or not self._has_prompt_ids or data.find(b"\n\n") != len(data) - 2:
            return None
        return data[:begin] + data[data.find(b"]", begin) + 1 :]

    def note(self, event: bytes) -> None:
        """Note an event with ids that goes to the client."""
        self._events.append(event)
        if len(self._events) >= BATCH_EVENTS and _TEXT.search(event):
            self._settle(len(self._events))

    def read(self, data: bytes) -> list[bytes]:
        """Return the events that are whole with `data`, without ids, noted."""
        if self.opaque:
            return [data]
        data = self._rest + data
        if b"\r\n\r\n" in data or len(data) > 2 * EVENT_BYTES:
            return self._give_up(data)
        *events, self._rest = data.split(b"\n\n")
        passed: list[bytes] = []
        for event in events:
            if self.failure or event.startswith(b'data: {"error"'):
                self.failure = self.failure or event + b"\n\n"
                continue
            passed.append(self._read(event + b"\n\n"))
        return passed

    def rest(self) -> bytes:
        """Return what is held back of an event that is not whole, at a stream's end."""
        rest, self._rest = self._rest, b""
        return rest

    def kept_ids(self) -> list[int]:
        """Return the answer's tokens up to the last one with text: a continuation begins behind it."""
        with_text = [at for at, event in enumerate(self._events) if _TEXT.search(event)]
        if with_text:
            self._settle(with_text[-1] + 1)
        return self._kept + [int(id) for id in self._ids.split(b",") if id]

    def continue_behind(self, kept_ids: list[int]) -> None:
        """Go on with another replica's stream, which begins behind these tokens."""
        self._kept, self._ids, self._events, self._rest = kept_ids, bytearray(), [], b""
        self.failure, self._has_prompt_ids = b"", False

    def head(self) -> dict[str, Any]:
        """Return the fields that all events of the stream share."""
        event = orjson.loads(self.first_event[5:])
        return {name: event[name] for name in ("id", "object", "created", "model") if name in event}

    def _read(self, event: bytes) -> bytes:
        """Note one whole event, and return it without ids."""
        if event.startswith(LAST_EVENT):
            self.done = True
            return event
        found = _PROMPT_IDS.search(event)
        if found and not self.prompt_ids:
            self.prompt_ids = orjson.loads(found[1])
        passed = _ALL_IDS.sub(b"", event)
        self.first_event = self.first_event or passed
        self._has_prompt_ids = True
        if _IDS.search(event):
            self.note(event)
        elif _TEXT.search(event):
            self.opaque = True
        self._finished = self._finished or _FINISH.search(event) is not None
        self.usage_sent = self.usage_sent or b'"usage":{' in event
        return passed

    def _give_up(self, data: bytes) -> list[bytes]:
        self.opaque, self._rest = True, b""
        return [data]

    def _settle(self, events: int) -> None:
        """Shrink the first events, of which the last brought text, to their ids."""
        settled = self._events[:events]
        self._finished, self._thinks = self.finished, _CONTENT.search(settled[-1]) is None
        for ids in _IDS.findall(b"".join(settled)):
            self._ids += ids + b","
        del self._events[:events]
