"""Rewrites a continuation's events as the rest of the first replica's stream.

The client gets one answer: `id`, `created` and the kind of its events stay the same, a role is sent once, and
usage counts the client's own prompt and every token of the answer. A chat that is continued as a completion
is translated back.
"""

from collections.abc import Mapping
from typing import Any

import orjson
from penstock_proto import replica_pb2 as wire

TOKEN_CHARACTERS = 128
"""Most characters of one token. An engine that was asked to continue inside a character begins with the text
of the whole prompt instead, and must not be believed."""


class NotAContinuation(Exception):
    """The stream does not continue the answer."""


class ContinuedEvents:
    """The events of one continuation, made to look like those of its answer.

    head: the fields that the answer's events share. chat: whether its client reads a chat.
    kept_tokens: of the answer, in the continuation's prompt.
    """

    def __init__(self, head: Mapping[str, Any], chat: bool, kept_tokens: int) -> None:
        self._head, self._chat, self._kept_tokens = head, chat, kept_tokens
        self._has_text = False

    def rewritten(self, events: bytes) -> bytes:
        """Return whole events as their client is to get them, without those that it has.

        Raises NotAContinuation.
        """
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
        """Return the replica's figures with those of the whole answer."""
        whole = wire.Finished()
        whole.CopyFrom(end)
        whole.prompt_tokens = max(end.prompt_tokens - self._kept_tokens, 0)
        whole.completion_tokens = end.completion_tokens + self._kept_tokens
        whole.cached_tokens = min(end.cached_tokens, whole.prompt_tokens)
        return whole

    def _choice(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        """Return a choice of an event; None where the client has all of it."""
        if "delta" in choice:  # asked for anew: nothing but the role had been sent
            delta = {name: value for name, value in choice["delta"].items() if name != "role"}
            repeats = "role" in choice["delta"] and not any(delta.values())
            return None if repeats and choice.get("finish_reason") is None else {**choice, "delta": delta}
        self._check(choice.get("text") or "")
        if not self._chat:
            return choice
        rest = {name: value for name, value in choice.items() if name not in ("index", "text")}
        return {"index": choice.get("index", 0), "delta": {"content": choice.get("text") or ""}, **rest}

    def _check(self, text: str) -> None:
        """Raise NotAContinuation where the first text is more than the text of some tokens."""
        if text and not self._has_text:
            self._has_text = True
            if self._kept_tokens and len(text) > TOKEN_CHARACTERS:
                raise NotAContinuation


def joined_usage(usage: Mapping[str, Any], kept_tokens: int) -> dict[str, Any]:
    """Return the usage of the whole answer. usage: its continuation's, with the kept tokens in the prompt."""
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
    """Return the events that end an answer of which nothing but its end is missing.

    finished: the client has the reason of its end; else it has as many tokens as it may.
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
