"""Answers in OpenAI's shapes, as vLLM writes them.

What all chunks of a stream share is written once: a token costs the joining of three byte strings. The first
chunk of a chat brings the role in an event of its own, in the same write.

What a model thinks before its answer is kept apart in chats, as vLLM's reasoning parsers keep it:
`reasoning_content` beside `content`, both in one delta where an iteration brought tokens of both. A
completion is the model's raw text, thinking and all.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from penstock_simulator.iteration import Finish
from penstock_simulator.request_body import Endpoint
from penstock_simulator.words import say

DONE = b"data: [DONE]\n\n"

_KIND = {
    Endpoint.CHAT: ("chat.completion", "chat.completion.chunk"),
    Endpoint.COMPLETION: ("text_completion", "text_completion"),
}
_BEFORE_TEXT = {
    Endpoint.CHAT: b',"choices":[{"index":0,"delta":{"content":"',
    Endpoint.COMPLETION: b',"choices":[{"index":0,"text":"',
}
_BEFORE_THOUGHT = b',"choices":[{"index":0,"delta":{"reasoning_content":"'
_BETWEEN = b'","content":"'
_AFTER_TEXT = {
    Endpoint.CHAT: b'"},"logprobs":null,"finish_reason":',
    Endpoint.COMPLETION: b'","logprobs":null,"finish_reason":',
}
_ROLE = (
    b',"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)


@dataclass(frozen=True, slots=True)
class Named:
    """What every answer to one request repeats.

    created_s: Unix time, whole seconds.
    voice: which words it says.
    """

    endpoint: Endpoint
    id: str
    model: str
    created_s: int
    voice: int


class EventStream:
    """Server-sent events of one answer."""

    def __init__(self, named: Named, thinking_tokens: int = 0) -> None:
        _, kind = _KIND[named.endpoint]
        head = {"id": named.id, "object": kind, "created": named.created_s, "model": named.model}
        self._voice = named.voice
        self._thinking_tokens = thinking_tokens if named.endpoint is Endpoint.CHAT else 0
        self._open = b"data: " + orjson.dumps(head)[:-1]
        self._before = self._open + _BEFORE_TEXT[named.endpoint]
        self._after = _AFTER_TEXT[named.endpoint]
        self._after_plain = self._after + b"null}]}\n\n"
        self._role = self._open + _ROLE if named.endpoint is Endpoint.CHAT else b""

    def tokens(self, places: range) -> bytes:
        """An event with the tokens at these places of the answer."""
        event = self._said(places) + self._after_plain
        return event if places.start else self._role + event

    def end(self, places: range, finish: Finish, usage: dict[str, int] | None) -> bytes:
        """The last tokens, why the answer ended, its usage where that is wanted, and the end."""
        event = self._said(places) + self._after
        event += b'"%s","stop_reason":null}]}\n\n' % finish.value.encode()
        if not places.start:
            event = self._role + event
        if usage is not None:
            event += self._open + b',"choices":[],"usage":' + orjson.dumps(usage) + b"}\n\n"
        return event + DONE

    def _said(self, places: range) -> bytes:
        """An event up to the end of its text."""
        if places.start >= self._thinking_tokens:
            return self._before + say(places, self._voice).encode()
        thought, answered = _parted(places, self._thinking_tokens)
        event = self._open + _BEFORE_THOUGHT + say(thought, self._voice).encode()
        return event + _BETWEEN + say(answered, self._voice).encode() if answered else event


def whole_answer(
    named: Named, tokens: int, thinking_tokens: int, finish: Finish, usage: dict[str, int]
) -> bytes:
    """The answer of a request that does not stream."""
    kind, _ = _KIND[named.endpoint]
    choice: dict[str, Any] = {"index": 0}
    if named.endpoint is Endpoint.CHAT:
        choice["message"] = _message(range(tokens), thinking_tokens, named.voice)
    else:
        choice["text"] = say(range(tokens), named.voice)
    choice |= {"logprobs": None, "finish_reason": finish.value, "stop_reason": None}
    return orjson.dumps(
        {
            "id": named.id,
            "object": kind,
            "created": named.created_s,
            "model": named.model,
            "choices": [choice],
            "usage": usage,
        }
    )


def _message(places: range, thinking_tokens: int, voice: int) -> dict[str, Any]:
    thought, answered = _parted(places, thinking_tokens)
    said = say(answered, voice) if answered else None
    message: dict[str, Any] = {"role": "assistant", "content": said, "refusal": None, "tool_calls": []}
    return message | {"reasoning_content": say(thought, voice)} if thought else message


def _parted(places: range, thinking_tokens: int) -> tuple[range, range]:
    """The places that are thinking, and those of the answer proper."""
    border = min(max(thinking_tokens, places.start), places.stop)
    return range(places.start, border), range(border, places.stop)


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """OpenAI's account of tokens."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
