"""Response bodies in OpenAI's format, as vLLM writes them.

The parts that all chunks of a stream share are encoded once, so a chunk costs joining three byte strings. The
first chunk of a chat is preceded by an event with the role, in the same write.

In chats, thinking is separate, as with vLLM's reasoning parsers: `reasoning_content` and `content`, both
in one delta if an iteration generated tokens of both. A completion is the model's raw text, including
thinking.

If the request asks for token ids (`return_token_ids`), each chunk has those of its tokens, and the first
those of the prompt.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from penstock_simulator.engine.iteration import Finish
from penstock_simulator.http.request_body import ApiEndpoint
from penstock_simulator.http.synthetic_text import AnswerStart, answer_ids, synthetic_text

Usage = dict[str, int | dict[str, int]]
"""OpenAI's `usage` object."""

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
    answer: beginning of the answer.
    prompt_ids: token ids of the prompt, if the response has token ids; else None.
    """

    endpoint: ApiEndpoint
    id: str
    model: str
    created_s: int
    answer: AnswerStart
    prompt_ids: list[int] | None = None

    def text(self, positions: range) -> str:
        """Return the text of the response's tokens at these positions."""
        return synthetic_text(self._of_answer(positions), self.answer.text_seed)

    def ids(self, positions: range) -> list[int]:
        """Return their ids."""
        return answer_ids(self._of_answer(positions), self.answer.text_seed)

    def _of_answer(self, positions: range) -> range:
        begin = self.answer.position
        return range(positions.start + begin, positions.stop + begin)


class EventWriter:
    """Writes one answer as server-sent events."""

    def __init__(self, head: ResponseHead, thinking_tokens: int = 0) -> None:
        _, kind = _KIND[head.endpoint]
        fields = {"id": head.id, "object": kind, "created": head.created_s, "model": head.model}
        self._head = head
        self._thinking_tokens = thinking_tokens if head.endpoint is ApiEndpoint.CHAT else 0
        self._open = b"data: " + orjson.dumps(fields)[:-1]
        self._before = self._open + _BEFORE_TEXT[head.endpoint]
        self._after = _AFTER_TEXT[head.endpoint]
        self._after_plain = self._after + b"null}]}\n\n"
        self._role = self._open + _ROLE if head.endpoint is ApiEndpoint.CHAT else b""

    def tokens(self, positions: range) -> bytes:
        """Return an event with the tokens at these positions of the answer."""
        if self._head.prompt_ids is not None:
            return self._with_ids(positions, self._after + b"null")
        event = self._text_event(positions) + self._after_plain
        return event if positions.start else self._role + event

    def end(self, positions: range, finish: Finish, usage: Usage | None) -> bytes:
        """Return the last tokens with the finish reason, the usage unless it is None, and `[DONE]`."""
        after = self._after + b'"%s","stop_reason":null' % finish.value.encode()
        if self._head.prompt_ids is not None:
            event = self._with_ids(positions, after)
        else:
            event = self._text_event(positions) + after + b"}]}\n\n"
            event = event if positions.start else self._role + event
        if usage is not None:
            event += self._open + b',"choices":[],"usage":' + orjson.dumps(usage) + b"}\n\n"
        return event + DONE

    def _with_ids(self, positions: range, after: bytes) -> bytes:
        """Return the event with its tokens' ids, and before the first the prompt's."""
        event = self._text_event(positions) + after
        event += b',"token_ids":' + orjson.dumps(self._head.ids(positions))
        if positions.start:
            return event + b"}]}\n\n"
        prompt = b',"prompt_token_ids":' + orjson.dumps(self._head.prompt_ids)
        if self._role:
            return self._role[:-3] + prompt + b"}\n\n" + event + b"}]}\n\n"
        return event + prompt + b"}]}\n\n"

    def _text_event(self, positions: range) -> bytes:
        """Return an event up to the end of its text."""
        if positions.start >= self._thinking_tokens:
            return self._before + self._head.text(positions).encode()
        thought, answered = _split_thinking(positions, self._thinking_tokens)
        event = self._open + _BEFORE_THOUGHT + self._head.text(thought).encode()
        return event + _BETWEEN + self._head.text(answered).encode() if answered else event


def json_response(
    head: ResponseHead, tokens: int, thinking_tokens: int, finish: Finish, usage: Usage
) -> bytes:
    """Return the response body of a request that does not stream."""
    kind, _ = _KIND[head.endpoint]
    choice: dict[str, Any] = {"index": 0}
    if head.endpoint is ApiEndpoint.CHAT:
        choice["message"] = _message(range(tokens), thinking_tokens, head)
    else:
        choice["text"] = head.text(range(tokens))
    choice |= {"logprobs": None, "finish_reason": finish.value, "stop_reason": None}
    prompt: dict[str, Any] = {}
    if head.prompt_ids is not None:
        choice["token_ids"] = head.ids(range(tokens))
        beside = prompt if head.endpoint is ApiEndpoint.CHAT else choice
        beside["prompt_token_ids"] = head.prompt_ids
    return orjson.dumps(
        prompt
        | {
            "id": head.id,
            "object": kind,
            "created": head.created_s,
            "model": head.model,
            "choices": [choice],
            "usage": usage,
        }
    )


def _message(positions: range, thinking_tokens: int, head: ResponseHead) -> dict[str, Any]:
    thought, answered = _split_thinking(positions, thinking_tokens)
    text = head.text(answered) if answered else None
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
    return message | {"reasoning_content": head.text(thought)} if thought else message


def _split_thinking(positions: range, thinking_tokens: int) -> tuple[range, range]:
    """Split positions into those of thinking and those of the answer."""
    border = min(max(thinking_tokens, positions.start), positions.stop)
    return range(positions.start, border), range(border, positions.stop)


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> Usage:
    """Return OpenAI's `usage` object. cached_tokens: cached prompt tokens; None without a prefix cache."""
    usage: Usage = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
    if cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return usage
