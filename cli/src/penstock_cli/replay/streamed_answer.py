"""The token times of one streamed answer, and its usage.

A token's time is that of its event. Engines may send several tokens in one event (speculation, or a slow
reader), and only the final usage has their number: they are then distributed evenly over the events.
"""

from array import array
from typing import Any

import orjson

from penstock_cli.replay.event_parser import EventParser

DONE = b"[DONE]"


class StreamError(Exception):
    """The stream had an error event or an invalid event."""


class StreamedAnswer:
    """The part of an answer that was received so far."""

    def __init__(self) -> None:
        self._events = EventParser()
        self.event_times_s: array[float] = array("d")
        self.completion_tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.done = False

    def feed(self, piece: bytes, now_s: float) -> None:
        """Parse bytes received at `now_s`. Raises StreamError."""
        for data in self._events.feed(piece):
            if data == DONE:
                self.done = True
            else:
                self._take(data, now_s)

    def _take(self, data: bytes, now_s: float) -> None:
        try:
            event = orjson.loads(data)
            if usage := event.get("usage"):
                self._read_usage(usage)
            if "error" in event:
                raise StreamError(_reason(event["error"]))
            if any(_has_content(choice) for choice in event.get("choices", ())):
                self.event_times_s.append(now_s)
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise StreamError(f"unreadable event: {type(error).__name__}") from None

    def _read_usage(self, usage: dict[str, Any]) -> None:
        self.completion_tokens = int(usage["completion_tokens"])
        if (prompt_tokens := usage.get("prompt_tokens")) is not None:
            self.prompt_tokens = int(prompt_tokens)
        cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if cached_tokens is not None:
            self.cached_tokens = int(cached_tokens)

    @property
    def tokens(self) -> int:
        """Number of tokens: as the engine reports it, else one per event."""
        return len(self.event_times_s) if self.completion_tokens is None else self.completion_tokens

    def token_times_s(self) -> list[float]:
        """Return the time of every token."""
        events, tokens = len(self.event_times_s), self.tokens
        if events in (0, tokens):
            return self.event_times_s.tolist()
        return [self.event_times_s[index * events // tokens] for index in range(tokens)]


def _has_content(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if delta is None:
        return bool(choice.get("text"))
    return bool(delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"))


def _reason(error: Any) -> str:
    return str(error.get("code") or error.get("type")) if isinstance(error, dict) else str(error)[:60]
