"""Tokens in a stream of server-sent events, counted without parsing each event.

An engine's bytes are passed on unchanged. Blank lines are counted, because they end events and cannot occur
inside JSON. One event has one token, except the chat's opening event (a role and empty content), the usage at
the end and `[DONE]`. If an engine merges tokens into one event, the count is too low until the usage arrives;
the message `Finished` (`replica.proto`) has the usage if there is one.

A model that thinks first begins with events with `reasoning_content` (or `reasoning`). The thinking ends with
the first event that has no such field, or that also has text of the answer.

Some engines end a stream without `[DONE]`. Then a choice's `finish_reason` shows that the answer is complete.
"""

import re
from dataclasses import dataclass
from typing import Any, TypeGuard

import msgspec

DONE = b"data: [DONE]"

EVENT_BYTES = 1 << 20
"""Longest event in bytes. Longer ones are passed on but not counted."""

MOST_TOKENS = 1 << 24
"""Most tokens in a usage: 128 answers of 131,072 tokens. A usage with more cannot be true, and is ignored."""

_JSON = b"data: {"
_OPENING = b'"content":""'
_USAGE = b'"usage"'

_FINISH = re.compile(rb'"finish_reason": ?"')

_THOUGHT = re.compile(rb'"reasoning(?:_content)?": ?"[^"]')
_CONTENT = re.compile(rb'"content": ?"[^"]')


@dataclass(frozen=True, slots=True)
class EngineUsage:
    """The engine's own counts. cached_tokens: cached prompt tokens; None if not reported."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None


class TokenCount:
    """Tokens of one streamed answer, and whether it is complete.

    thinking_tokens: tokens before the answer proper, once that has begun; 0 before, and without thinking.
    """

    __slots__ = (
        "_finish",
        "_last",
        "_opened",
        "_plain",
        "_rest",
        "_thinks",
        "done",
        "thinking_tokens",
        "tokens",
        "usage",
    )

    def __init__(self) -> None:
        self.tokens = 0
        self.done = False  # `[DONE]` has arrived: the answer is complete
        self.usage: EngineUsage | None = None
        self._rest = b""  # of an event whose end has not arrived
        self._opened = False
        self._thinks = False
        self._plain = False  # the next bytes belong to the answer proper, and begin an event
        self._finish = False  # a choice has a finish_reason
        self._last = b""  # a single event that is not parsed yet
        self.thinking_tokens = 0

    @property
    def finished(self) -> bool:
        """Return whether a choice has a `finish_reason`."""
        return self._finish or _FINISH.search(self._last) is not None

    def feed(self, data: bytes) -> int:
        """Return how many tokens `data`, the next bytes of the stream, completes."""
        if (
            self._plain
            and data.startswith(_JSON)
            and data.find(b"\n\n") == len(data) - 2
            and _USAGE not in data
        ):
            self._last = data
            self.tokens += 1
            return 1
        return self._feed_events(self._rest + data)

    def _feed_events(self, data: bytes) -> int:
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")  # some servers write CRLF; a lone CR waits for its LF
        *events, rest = data.split(b"\n\n")
        self._rest = rest if len(rest) <= EVENT_BYTES else b""
        before = self.tokens
        for event in events:
            self._take(event.strip(b"\n"))
        self._plain = self._opened and self.tokens > 0 and not self._thinks and not self._rest
        return self.tokens - before

    def _take(self, event: bytes) -> None:
        tokens = self._count(event)
        self._finish = self._finish or _FINISH.search(event) is not None
        if tokens and not self.tokens:
            self._thinks = _THOUGHT.search(event) is not None
        self.tokens += tokens
        if tokens and self._thinks and (_CONTENT.search(event) or not _THOUGHT.search(event)):
            self._thinks = False
            self.thinking_tokens = self.tokens if _THOUGHT.search(event) else self.tokens - 1

    def _count(self, event: bytes) -> int:
        if event.startswith(DONE):
            self.done = True
            return 0
        if not event.startswith(b"data:"):
            return 0
        if _USAGE in event:
            return self._count_usage(event)
        if not self._opened:
            self._opened = True
            return 0 if _OPENING in event.replace(b" ", b"") else 1
        return 1

    def _count_usage(self, event: bytes) -> int:
        chunk = _parsed(event[5:])
        if chunk is None:
            return 1
        self.usage = usage_of(chunk) or self.usage
        opening = not self._opened and _OPENING in event.replace(b" ", b"")
        self._opened = True
        return 1 if chunk.get("choices") and not opening else 0


def usage_of(answer: dict[str, Any]) -> EngineUsage | None:
    """Return the usage in an answer, or in one of its events; None without it."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not _is_count(prompt) or not _is_count(completion):
        return None
    return EngineUsage(prompt, completion, _cached_tokens(usage, prompt))


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value <= MOST_TOKENS


def _cached_tokens(usage: dict[str, Any], prompt_tokens: int) -> int | None:
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return min(max(cached, 0), prompt_tokens) if isinstance(cached, int) else None


def usage_of_body(body: bytes) -> EngineUsage | None:
    """Return the usage in a complete answer; None without it."""
    answer = _parsed(body)
    return None if answer is None else usage_of(answer)


def _parsed(data: bytes) -> dict[str, Any] | None:
    try:
        parsed = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return parsed if isinstance(parsed, dict) else None
