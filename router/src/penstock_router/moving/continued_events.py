"""Rewrites a continuation's events as the rest of the first replica's stream.

The client gets one answer: `id`, `created` and the kind of events stay the same, the role is sent once, and
usage counts the client's prompt and every token of the answer. A chat that is continued as a completion is
translated back.
"""

from collections.abc import Mapping
from typing import Any

import orjson
from penstock_proto import replica_pb2 as wire

TOKEN_CHARACTERS = 128
"""Most characters of one token. An engine that is asked to continue inside a character repeats the text of
the whole prompt; such a stream is not a continuation."""


class NotAContinuation(Exception):
    """The stream does not continue the answer."""


class ContinuedEvents:
    """Rewrites the events of one continuation.

    head: fields that all events of the answer share. chat: whether the client reads a chat.
    kept_tokens: tokens of the answer in the continuation's prompt.
    """

    def __init__(self, head: Mapping[str, Any], chat: bool, kept_tokens: int) -> None:
        self._head, self._chat, self._kept_tokens = head, chat, kept_tokens
        self._has_text = False

    def rewritten(self, events: bytes) -> bytes:
        """Return whole events as the client gets them, without repeated ones. Raises NotAContinuation."""
        return b"".join([self._event(event + b"\n\n") for event in events.split(b"\n\n")[:-1]])

    def _event(self, event: bytes) -> bytes:
        try:
            chunk = orjson.loads(event[5:])
        except orjson.JSONDecodeError:  # [DONE], or a comment
            return event
        choices = [self._choice(choice) for choice in chunk.get("choices") or ()]
        if choices and not any(choices):
            return b""
        written = {**chunk, **self._head, "choices": [choice for choice in choices if choice]}
        if isinstance(chunk.get("usage"), dict):
            written["usage"] = joined_usage(chunk["usage"], self._kept_tokens)
        return event_of(written)

    def finished(self, end: wire.Finished) -> wire.Finished:
        """Return the replica's final counts, corrected to those of the whole answer."""
        whole = wire.Finished()
        whole.CopyFrom(end)
        whole.prompt_tokens = max(end.prompt_tokens - self._kept_tokens, 0)
        whole.completion_tokens = end.completion_tokens + self._kept_tokens
        whole.cached_tokens = min(end.cached_tokens, whole.prompt_tokens)
        return whole

    def _choice(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        """Return a choice of an event; None if the client has all of it."""
        if "delta" in choice:  # the first request was sent again, after no more than the role was received
            delta = {name: value for name, value in choice["delta"].items() if name != "role"}
            repeats = "role" in choice["delta"] and not any(delta.values())
            return None if repeats and choice.get("finish_reason") is None else {**choice, "delta": delta}
        self._check(choice.get("text") or "")
        if not self._chat:
            return choice
        rest = {name: value for name, value in choice.items() if name not in ("index", "text")}
        return {"index": choice.get("index", 0), "delta": {"content": choice.get("text") or ""}, **rest}

    def _check(self, text: str) -> None:
        """Raise NotAContinuation if the first text is longer than that of one token."""
        if text and not self._has_text:
            self._has_text = True
            if self._kept_tokens and len(text) > TOKEN_CHARACTERS:
                raise NotAContinuation


def joined_usage(usage: Mapping[str, Any], kept_tokens: int) -> dict[str, Any]:
    """Return the usage of the whole answer. usage: the continuation's; its prompt has the kept tokens."""
    joined = dict(usage)
    joined["prompt_tokens"] = prompt = max(usage.get("prompt_tokens", 0) - kept_tokens, 0)
    joined["completion_tokens"] = usage.get("completion_tokens", 0) + kept_tokens
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
        joined["prompt_tokens_details"] = {**details, "cached_tokens": min(details["cached_tokens"], prompt)}
    return joined


def closing_events(
    head: Mapping[str, Any], *, chat: bool, finished: bool, usage: tuple[int, int] | None
) -> bytes:
    """Return the last events of an answer whose tokens the client has all received.

    finished: whether the client has the finish reason; if not, it is `length`.
    usage: tokens of the prompt and of the answer, if usage is requested.
    """
    closing = b""
    if not finished:
        text: dict[str, Any] = {"delta": {"content": ""}} if chat else {"text": ""}
        choice = {"index": 0, **text, "logprobs": None, "finish_reason": "length"}
        closing += event_of({**head, "choices": [choice]})
    if usage is not None:
        prompt, completion = usage
        counts = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        closing += event_of({**head, "choices": [], "usage": counts})
    return closing + b"data: [DONE]\n\n"


def event_of(chunk: Mapping[str, Any]) -> bytes:
    """Return a chunk as a server-sent event."""
    return b"data: " + orjson.dumps(chunk) + b"\n\n"
