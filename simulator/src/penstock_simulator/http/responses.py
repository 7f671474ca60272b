"""Response bodies in OpenAI's format, as vLLM writes them.

The parts that all chunks of a stream share are encoded once, so a chunk costs joining three byte strings. The
first chunk of a chat is preceded by an event with the role, in the same write.

In chats, thinking is separate, as with vLLM's reasoning parsers: `reasoning_content` beside `content`, both
in one delta if an iteration generated tokens of both. A completion is the model's raw text, including
thinking.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from penstock_simulator.engine.iteration import Finish
from penstock_simulator.http.request_body import ApiEndpoint
from penstock_simulator.http.synthetic_text import synthetic_text

DONE = b"data: [DONE]\n\n"

_KIND = {
    ApiEndpoint.CHAT: ("chat.completion", "chat.completion.chunk"),
    ApiEndpoint.COMPLETION: ("text_completion", "text_completion"),
}
_BEFORE_TEXT = {
    ApiEndpoint.CHAT: b',"choices":[{"index":0,"delta":{"content":"',
    ApiEndpoint.COMPLETION: b',"choices":[{"index":0,"text":"',
}
_BEFORE_THOUGHT = b',"choices":[{"index":0,"delta":{"reasoning_content":"'
_BETWEEN = b'","content":"'
_AFTER_TEXT = {
    ApiEndpoint.CHAT: b'"},"logprobs":null,"finish_reason":',
    ApiEndpoint.COMPLETION: b'","logprobs":null,"finish_reason":',
}
_ROLE = (
    b',"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The fields that all chunks of a response repeat.

    created_s: Unix time, whole seconds.
    text_seed: selects the words of the answer.
    """

    endpoint: ApiEndpoint
    id: str
    model: str
    created_s: int
    text_seed: int


class EventWriter:
    """Writes one answer as server-sent events."""

    def __init__(self, head: ResponseHead, thinking_tokens: int = 0) -> None:
        _, kind = _KIND[head.endpoint]
        fields = {"id": head.id, "object": kind, "created": head.created_s, "model": head.model}
        self._text_seed = head.text_seed
        self._thinking_tokens = thinking_tokens if head.endpoint is ApiEndpoint.CHAT else 0
        self._open = b"data: " + orjson.dumps(fields)[:-1]
        self._before = self._open + _BEFORE_TEXT[head.endpoint]
        self._after = _AFTER_TEXT[head.endpoint]
        self._after_plain = self._after + b"null}]}\n\n"
        self._role = self._open + _ROLE if head.endpoint is ApiEndpoint.CHAT else b""

    def tokens(self, positions: range) -> bytes:
        """Return an event with the tokens at these positions of the answer."""
        event = self._text_event(positions) + self._after_plain
        return event if positions.start else self._role + event

    def end(self, positions: range, finish: Finish, usage: dict[str, int] | None) -> bytes:
        """Return the last tokens with the finish reason, the usage unless it is None, and `[DONE]`."""
        event = self._text_event(positions) + self._after
        event += b'"%s","stop_reason":null}]}\n\n' % finish.value.encode()
        if not positions.start:
            event = self._role + event
        if usage is not None:
            event += self._open + b',"choices":[],"usage":' + orjson.dumps(usage) + b"}\n\n"
        return event + DONE

    def _text_event(self, positions: range) -> bytes:
        """Return an event up to the end of its text."""
        if positions.start >= self._thinking_tokens:
            return self._before + synthetic_text(positions, self._text_seed).encode()
        thought, answered = _split_thinking(positions, self._thinking_tokens)
        event = self._open + _BEFORE_THOUGHT + synthetic_text(thought, self._text_seed).encode()
        return event + _BETWEEN + synthetic_text(answered, self._text_seed).encode() if answered else event


def json_response(
    head: ResponseHead, tokens: int, thinking_tokens: int, finish: Finish, usage: dict[str, int]
) -> bytes:
    """Return the response body of a request that does not stream."""
    kind, _ = _KIND[head.endpoint]
    choice: dict[str, Any] = {"index": 0}
    if head.endpoint is ApiEndpoint.CHAT:
        choice["message"] = _message(range(tokens), thinking_tokens, head.text_seed)
    else:
        choice["text"] = synthetic_text(range(tokens), head.text_seed)
    choice |= {"logprobs": None, "finish_reason": finish.value, "stop_reason": None}
    return orjson.dumps(
        {
            "id": head.id,
            "object": kind,
            "created": head.created_s,
            "model": head.model,
            "choices": [choice],
            "usage": usage,
        }
    )


def _message(positions: range, thinking_tokens: int, text_seed: int) -> dict[str, Any]:
    thought, answered = _split_thinking(positions, thinking_tokens)
    said = synthetic_text(answered, text_seed) if answered else None
    message: dict[str, Any] = {"role": "assistant", "content": said, "refusal": None, "tool_calls": []}
    return message | {"reasoning_content": synthetic_text(thought, text_seed)} if thought else message


def _split_thinking(positions: range, thinking_tokens: int) -> tuple[range, range]:
    """Split positions into those of thinking and those of the answer."""
    border = min(max(thinking_tokens, positions.start), positions.stop)
    return range(positions.start, border), range(border, positions.stop)


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Return OpenAI's `usage` object."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
