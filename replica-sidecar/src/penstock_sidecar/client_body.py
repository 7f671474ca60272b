"""What the sidecar reads of a client's body, and the body that goes to the engine.

Only what planning needs is read and checked; every other field is the engine's to judge. The bytes go on as
they came: SLO fields are spliced in behind them, so nothing of the client's is written anew, unless it
brought `vllm_xargs` of its own to be merged with.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from penstock_core.domain.engine_fields import Scalar
from penstock_proto import replica_pb2 as wire
from penstock_runtime.openai_errors import ApiError

XARGS = "vllm_xargs"

STREAM_OPTIONS = "stream_options"

OUR_FIELDS = "penstock_"
"""Fields that begin so are the sidecar's own to write: a client cannot give itself an SLO."""


@dataclass(frozen=True, slots=True)
class ClientBody:
    """A body that can be served.

    prompt_token_ids: tokens of the prompt where it came as ids, else None.
    text_bytes: UTF-8 bytes of its text, messages or tools.
    messages: how many of them, for templates that add tokens to each.
    max_tokens: the client's own bound on the answer, or None.
    answers: choices asked for; each is generated.
    xargs: the client's own `vllm_xargs` without any of our fields, or None.
    stream_options: the client's own, right or wrong; None without.
    """

    raw: bytes
    prompt_token_ids: int | None
    text_bytes: int
    messages: int
    max_tokens: int | None
    answers: int
    stream: bool
    xargs: Mapping[str, Any] | None
    stream_options: Any = None

    def with_fields(self, fields: Mapping[str, Scalar]) -> bytes:
        """The body for the engine: the client's, and `fields` among its `vllm_xargs`."""
        if self.xargs is not None:
            merged = {**orjson.loads(self.raw), XARGS: {**self.xargs, **fields}}
            return orjson.dumps(merged)
        return self._with(XARGS, fields)

    def asking_usage(self) -> bytes | None:
        """The body with its stream to end with usage; None where it does so by itself, or is no stream."""
        if not self.stream:
            return None
        if self.stream_options is None:
            return self._with(STREAM_OPTIONS, {"include_usage": True})
        if not isinstance(self.stream_options, dict) or self.stream_options.get("include_usage"):
            return None
        options = {**self.stream_options, "include_usage": True}
        return orjson.dumps({**orjson.loads(self.raw), STREAM_OPTIONS: options})

    def _with(self, name: str, value: Mapping[str, Any]) -> bytes:
        """One field more, behind the others."""
        body = self.raw.rstrip()
        return body[:-1] + b',"' + name.encode() + b'":' + orjson.dumps(value) + b"}"


def read_body(endpoint: wire.Endpoint.ValueType, raw: bytes) -> ClientBody:
    """The body, checked. Raises ApiError (400) that names the field."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _bad(None, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise _bad(None, "the body must be a JSON object")
    chat = endpoint == wire.ENDPOINT_CHAT_COMPLETIONS
    ids, text_bytes, messages = _chat_prompt(body) if chat else _prompt(body)
    return ClientBody(
        raw=raw,
        prompt_token_ids=ids,
        text_bytes=text_bytes,
        messages=messages,
        max_tokens=_max_tokens(body),
        answers=_positive(body, "n") or 1,
        stream=_flag(body, "stream"),
        xargs=_xargs(body),
        stream_options=_stream_options(body),
    )


def over_context(body: ClientBody, max_model_len: int) -> ApiError | None:
    """The error for a prompt that certainly does not fit into the model's context; None where it may."""
    if not max_model_len or body.prompt_token_ids is None or body.prompt_token_ids < max_model_len:
        return None
    return ApiError(
        400,
        f"the prompt has {body.prompt_token_ids} tokens; with an answer at most {max_model_len} fit into the "
        "model's context",
        param="prompt",
        code="context_length_exceeded",
    )


def _bad(param: str | None, message: str) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value")


def _chat_prompt(body: dict[str, Any]) -> tuple[None, int, int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _bad("messages", "'messages' must be a list of at least one message")
    total = 0
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _bad(f"messages[{index}]", f"'messages[{index}]' must be an object")
        total += _content_bytes(message.get("content"), index)
    tools = body.get("tools")
    return None, total + (len(orjson.dumps(tools)) if tools else 0), len(messages)


def _content_bytes(content: Any, index: int) -> int:
    where = f"messages[{index}].content"
    if content is None:
        return 0  # a call of tools says nothing itself
    if isinstance(content, str):
        return _utf8_bytes(content, where)
    if not isinstance(content, list):
        raise _bad(where, f"'{where}' must be text or a list of parts")
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    if len(texts) < len(content):
        raise _bad(where, f"'{where}' must hold objects")
    return sum(_utf8_bytes(text, where) for text in texts if isinstance(text, str))


def _prompt(body: dict[str, Any]) -> tuple[int | None, int, int]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return None, _utf8_bytes(prompt, "prompt"), 0
    if not isinstance(prompt, list) or not prompt:
        raise _bad("prompt", "'prompt' must be text, a list of token ids, or a list of either")
    if _are_ids(prompt):
        return len(prompt), 0, 0
    if all(isinstance(part, list) and part and _are_ids(part) for part in prompt):
        return sum(len(part) for part in prompt), 0, 0
    if all(isinstance(part, str) for part in prompt):
        return None, sum(_utf8_bytes(part, "prompt") for part in prompt), 0
    raise _bad("prompt", "'prompt' must hold token ids (whole numbers, 0 or more), or texts, or lists of ids")


def _are_ids(values: list[Any]) -> bool:
    return set(map(type, values)) == {int} and min(values) >= 0


def _utf8_bytes(text: str, where: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise _bad(where, f"'{where}' is not valid Unicode") from None


def _max_tokens(body: dict[str, Any]) -> int | None:
    newer = _positive(body, "max_completion_tokens")
    return newer if newer is not None else _positive(body, "max_tokens")


def _positive(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise _bad(name, f"'{name}' must be a whole number, 1 or more")
    return value


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _bad(name, f"'{name}' must be true or false")
    return value


def _stream_options(body: dict[str, Any]) -> Any:
    value = body.get(STREAM_OPTIONS)
    return {} if value is None and STREAM_OPTIONS in body else value


def _xargs(body: dict[str, Any]) -> Mapping[str, Any] | None:
    value = body.get(XARGS)
    if value is None and XARGS not in body:
        return None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _bad(XARGS, f"'{XARGS}' must be an object")
    return {name: said for name, said in value.items() if not name.startswith(OUR_FIELDS)}
