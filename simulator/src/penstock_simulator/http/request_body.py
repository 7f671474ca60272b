"""Parses and validates the body of a completion request.

Sampling fields are validated and have no effect, because only time is simulated. Unknown fields are ignored,
as in vLLM. `vllm_xargs` carries the sidecar's fields (`penstock_…`), and in a replayed trace
`simulated_output_tokens`, the true length of the output, and `simulated_thinking_tokens`, how many of them
are thinking tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from penstock_core.domain.engine_fields import Scalar
from penstock_runtime.openai_errors import ApiError

from penstock_simulator.http.json_fields import (
    bad_field,
    boolean,
    integer,
    mapping,
    number,
    read_object,
    text,
)
from penstock_simulator.http.synthetic_text import (
    HASHED_TOKENS,
    MESSAGE_TOKENS,
    AnswerStart,
    answer_start,
    count_text,
    last_token_ids,
    token_ids,
)
from penstock_simulator.prefix_cache.block_keys import BlockKey, token_keys

SALT_LETTERS = 4096
"""Longest `cache_salt`."""

COMPLETION_TOKENS = 16
"""OpenAI's default of `max_tokens` for a completion. A chat's default is the rest of the context."""


class ApiEndpoint(StrEnum):
    """OpenAI's two completion endpoints."""

    CHAT = "chat"
    COMPLETION = "completion"


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A validated completion request.

    max_tokens: limit of the answer's tokens, bounded by the model's context.
    answer_tokens: true length of the answer if the body states it, else None.
    thinking_tokens: how many of them are thinking tokens.
    answer: beginning of the answer, which determines its words.
    prompt_ids: the prompt's token ids if the response is to have token ids (`return_token_ids`), else None.
    include_usage: whether the stream ends with a usage chunk.
    block_keys: keys of the prompt's full blocks; empty without a prefix cache.
    xargs: the fields of `vllm_xargs` that are not null.
    """

    endpoint: ApiEndpoint
    prompt_tokens: int
    max_tokens: int
    min_tokens: int
    answer_tokens: int | None
    thinking_tokens: int
    answer: AnswerStart
    prompt_ids: list[int] | None
    stream: bool
    include_usage: bool
    block_keys: Sequence[BlockKey]
    xargs: dict[str, Scalar]


def read_request(
    data: bytes, endpoint: ApiEndpoint, model: str, max_model_len: int, cached_block_tokens: int = 0
) -> CompletionRequest:
    """Parse a body. Raises ApiError 400 that names the field, or 404 for another model.

    cached_block_tokens: tokens in a block of the engine's prefix cache; 0 if it has none.
    """
    body = read_object(data)
    check_model(body, model)
    _check_sampling(body)
    field = "messages" if endpoint is ApiEndpoint.CHAT else "prompt"
    prompt_tokens = _count_messages(body) if endpoint is ApiEndpoint.CHAT else _count_prompt(body)
    max_tokens = _max_tokens(body, endpoint, field, prompt_tokens, max_model_len)
    min_tokens = integer(body, "min_tokens", 0) or 0
    if min_tokens > max_tokens:
        raise bad_field("min_tokens", f"{min_tokens} is more than the answer's limit of {max_tokens}")
    stream = boolean(body, "stream")
    options = mapping(body, "stream_options")
    if options and not stream:
        raise bad_field("stream_options", "requires stream: true")
    xargs = _xargs(body)
    answer = answer_start(_last_ids(body, endpoint))
    return CompletionRequest(
        endpoint=endpoint,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        answer_tokens=_answer_tokens(body, xargs, max_tokens, answer.position),
        thinking_tokens=integer(xargs, "simulated_thinking_tokens", 0, prefix="vllm_xargs.") or 0,
        answer=answer,
        prompt_ids=prompt_ids(body, endpoint) if boolean(body, "return_token_ids") else None,
        stream=stream,
        include_usage=boolean(options, "include_usage", "stream_options."),
        block_keys=_block_keys(body, endpoint, cached_block_tokens),
        xargs=xargs,
    )


def check_model(body: dict[str, Any], model: str) -> None:
    """Check that a body names the served model or none. Raises ApiError 404."""
    named = text(body, "model", 512)
    if named is not None and named != model:
        raise ApiError(
            404, f"the model '{named}' does not exist; '{model}' does", param="model", code="model_not_found"
        )


def message_texts(body: dict[str, Any]) -> list[list[str]]:
    """Return the texts of each of `messages`. Raises ApiError 400."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_field("messages", "must be a list of at least one message")
    return [_texts(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _texts(message: Any, where: str) -> list[str]:
    if not isinstance(message, dict):
        raise bad_field(where, "must be an object with role and content")
    if not isinstance(message.get("role"), str):
        raise bad_field(f"{where}.role", "must be a string")
    content = message.get("content")
    parts = [{"text": content}] if isinstance(content, str) else content or []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise bad_field(f"{where}.content", "must be a string or a list of parts")
    texts = [part.get("text", "") for part in parts]
    if not all(isinstance(part, str) for part in texts):
        raise bad_field(f"{where}.content", "a part's text must be a string")
    return texts


def _count_messages(body: dict[str, Any]) -> int:
    return sum(MESSAGE_TOKENS + sum(map(count_text, texts)) for texts in message_texts(body))


def prompt_ids(body: dict[str, Any], endpoint: ApiEndpoint) -> list[int]:
    """Return the token ids of the prompt of a valid body."""
    if endpoint is ApiEndpoint.CHAT:
        return [token for texts in message_texts(body) for token in _message_ids(texts)]
    prompt = _only_prompt(body)
    return token_ids(prompt) if isinstance(prompt, str) else prompt


def _message_ids(texts: list[str], ids: Callable[[str], list[int]] = token_ids) -> list[int]:
    return [*range(MESSAGE_TOKENS), *[token for text in texts for token in ids(text)]]


def _block_keys(body: dict[str, Any], endpoint: ApiEndpoint, block_tokens: int) -> Sequence[BlockKey]:
    """Return the keys of the prompt's full blocks. `cache_salt` separates prompts as in vLLM."""
    salt = text(body, "cache_salt", SALT_LETTERS)
    if salt == "":
        raise bad_field("cache_salt", "must not be empty")
    return token_keys(prompt_ids(body, endpoint), block_tokens, salt or "") if block_tokens else ()


def _last_ids(body: dict[str, Any], endpoint: ApiEndpoint) -> list[int]:
    """Return the token ids at the end of the prompt, at least as many as choose the answer."""
    if endpoint is ApiEndpoint.CHAT:
        last = message_texts({"messages": body["messages"][-HASHED_TOKENS // MESSAGE_TOKENS :]})
        return [token for texts in last for token in _message_ids(texts, last_token_ids)]
    prompt = _only_prompt(body)
    return last_token_ids(prompt) if isinstance(prompt, str) else prompt


def _only_prompt(body: dict[str, Any]) -> Any:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        return prompt[0]
    return prompt


def _count_prompt(body: dict[str, Any]) -> int:
    prompt = _only_prompt(body)
    if isinstance(prompt, str) and prompt:
        return count_text(prompt)
    if isinstance(prompt, list) and prompt and set(map(type, prompt)) == {int} and min(prompt) >= 0:
        return len(prompt)
    raise bad_field("prompt", "must be one non-empty prompt: a string or a list of token ids")


def _max_tokens(
    body: dict[str, Any], endpoint: ApiEndpoint, field: str, prompt_tokens: int, max_model_len: int
) -> int:
    left_tokens = max_model_len - prompt_tokens
    if left_tokens < 1:
        raise ApiError(
            400,
            f"{field}: has {prompt_tokens} tokens; prompt and answer together have at most {max_model_len}",
            param=field,
            code="context_length_exceeded",
        )
    older, newer = integer(body, "max_tokens", 1), integer(body, "max_completion_tokens", 1)
    wanted = older if newer is None else newer
    if wanted is None:
        unbounded = endpoint is ApiEndpoint.CHAT or "max_tokens" in body  # null is no bound, as in vLLM
        return left_tokens if unbounded else min(COMPLETION_TOKENS, left_tokens)
    if wanted > left_tokens:
        name = "max_tokens" if newer is None else "max_completion_tokens"
        raise ApiError(
            400,
            f"{name}: {wanted} is too large; {field} has {prompt_tokens} tokens, and together they "
            f"may have at most {max_model_len}",
            param=name,
            code="context_length_exceeded",
        )
    return wanted


def _answer_tokens(
    body: dict[str, Any], xargs: dict[str, Scalar], max_tokens: int, position: int
) -> int | None:
    """Return how many tokens are still to be generated, if the body states the answer's length."""
    ignore_eos = boolean(body, "ignore_eos")
    stated = integer(xargs, "simulated_output_tokens", 1, prefix="vllm_xargs.")
    if stated is not None:
        return min(max(stated - position, 1), max_tokens)
    return max_tokens if ignore_eos else None


def _check_sampling(body: dict[str, Any]) -> None:
    number(body, "temperature", 0, 2)
    number(body, "top_p", 0, 1)
    number(body, "presence_penalty", -2, 2)
    number(body, "frequency_penalty", -2, 2)
    integer(body, "seed", -(1 << 63), (1 << 63) - 1)
    if (integer(body, "n", 1) or 1) != 1:
        raise bad_field("n", "must be 1: this engine generates one answer per request")
    stop = body.get("stop")
    stops = stop if isinstance(stop, list) else [] if stop is None else [stop]
    if not all(isinstance(word, str) for word in stops):
        raise bad_field("stop", "must be a string or a list of strings")


def _xargs(body: dict[str, Any]) -> dict[str, Scalar]:
    xargs = mapping(body, "vllm_xargs")
    for name, value in xargs.items():
        if name.startswith("penstock_") and not isinstance(value, str | int | float):
            raise bad_field(f"vllm_xargs.{name}", "must be a string, a number, true or false")
    where = "vllm_xargs."
    text(xargs, "penstock_id", 256, where)
    text(xargs, "penstock_tier", 256, where)
    for name in ("spent", "ttft", "tpot", "e2e", "answer_tpot"):
        number(xargs, f"penstock_{name}_s", 0, prefix=where)
    number(xargs, "penstock_value", 0, prefix=where)
    integer(xargs, "penstock_output_tokens", 1, prefix=where)
    integer(xargs, "penstock_sure_tokens", 0, prefix=where)
    boolean(xargs, "penstock_best_effort", where)
    return {name: value for name, value in xargs.items() if value is not None}
