"""The request that continues an answer on another replica.

Its prompt is the first request's prompt as token ids, followed by the tokens that the client has received.
The engine has reported both (`return_token_ids`), because tokenizing the text again may produce other tokens.
A chat is continued as a completion, whose prompt may be token ids; its events are translated back
(`continued_events`). Bounds on the answer's length are reduced by the tokens received.
"""

from collections.abc import Sequence

import orjson
from penstock_proto import replica_pb2 as wire

from penstock_router.moving.eligibility import Fields

IDS_FIELD = b"return_token_ids"

COMPLETION_TOKENS = 16
"""OpenAI's default of `max_tokens` for a completion. A chat's default is the rest of the context."""

_REPLACED = frozenset({"prompt", "messages", "max_tokens", "max_completion_tokens", "min_tokens", "stream"})

_OF_THE_FIRST_PROMPT = frozenset(
    {
        "add_generation_prompt",
        "add_special_tokens",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "include_reasoning",
        "logprobs",
        "mm_processor_kwargs",
        "parallel_tool_calls",
        "reasoning_effort",
        "response_format",
        "tool_choice",
        "tools",
        "top_logprobs",
        "truncate_prompt_tokens",
    }
)
"""Fields that affect only the first prompt, or that only a chat has. `eligibility` excludes requests in which
such a field matters for the rest of the answer."""


def requesting_ids(body: bytes) -> bytes | None:
    """Return a stream's body with a request for token ids; None if the client's body mentions them."""
    if IDS_FIELD in body:
        return None
    return body.rstrip()[:-1] + b',"' + IDS_FIELD + b'":true}'


def tokens_left(endpoint: "wire.Endpoint.ValueType", body: Fields, kept_tokens: int) -> int | None:
    """Return how many more tokens the answer may have; None if only the context bounds it."""
    most = body.get("max_completion_tokens")
    if most is None:
        most = body.get("max_tokens")
    if most is None and endpoint == wire.ENDPOINT_COMPLETIONS and "max_tokens" not in body:
        most = COMPLETION_TOKENS
    return None if most is None else most - kept_tokens


def continued_body(
    endpoint: "wire.Endpoint.ValueType", body: Fields, prompt_ids: Sequence[int], kept_ids: Sequence[int]
) -> bytes:
    """Return the body of the completion that continues the answer.

    kept_ids: tokens of the answer that the client has received.
    """
    dropped = _REPLACED | _OF_THE_FIRST_PROMPT
    fields = {name: value for name, value in body.items() if name not in dropped}
    fields |= {
        "prompt": [*prompt_ids, *kept_ids],
        "stream": True,
        "max_tokens": tokens_left(endpoint, body, len(kept_ids)),
    }
    if body.get("min_tokens"):
        fields["min_tokens"] = max(body["min_tokens"] - len(kept_ids), 0)
    return orjson.dumps(fields | {IDS_FIELD.decode(): True})
