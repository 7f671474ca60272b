"""The fields of a client's body that planning needs, and the body that is sent to the engine.

Other fields are left to the engine. They are skipped without building their values: 8 MiB of empty arrays
take 20 ms, where parsing takes 600 ms. The bytes are forwarded unchanged. SLO fields are appended and replace
the client's own `vllm_xargs`, because JSON parsers use the last of two equal names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from penstock_core.domain.engine_fields import Scalar
from penstock_core.domain.json_nesting import nesting_of
from penstock_core.domain.replica_admission import MOST_SEQUENCES
from penstock_proto import replica_pb2 as wire
from penstock_runtime.openai_errors import ApiError
from penstock_runtime.prompt_marks import UNMARKED, PromptMarks, prompt_marks

XARGS = "vllm_xargs"

STREAM_OPTIONS = "stream_options"

IDS_REQUEST = b',"return_token_ids":true}'
"""End of a body to which a router has added a request for token ids, so that its stream can move."""

PENSTOCK_FIELDS = "penstock_"
"""Prefix of fields that only the sidecar may write, so that clients cannot set their own SLO."""

XARGS_BYTES = 1 << 16
"""Longest `vllm_xargs`."""

REWRITTEN_BYTES = 1 << 20
"""Longest body that is rewritten to change its `stream_options`. A longer one is sent unchanged, and its
answer's tokens are counted by events."""

_PATH = re.compile(r" - at `\$\.?(.*)`$")
_PART = re.compile(r"(?<=content)\[.*")


@dataclass(frozen=True, slots=True)
class ClientBody:
    """A valid body. Of several prompts, prompt_token_ids and text_bytes are those of the longest.

    prompt_token_ids: number of tokens if the prompt is given as token ids, else None.
    text_bytes: UTF-8 bytes of its text, messages or tools.
    messages: number of messages, because templates add tokens to each.
    max_tokens: the client's bound on the answer; None without one.
    prompts: number of prompts. sequences: answers that the engine generates for all of them.
    xargs: the client's `vllm_xargs` without fields of Penstock; empty if there are none.
    stream_options: the client's own, as JSON; empty if there are none.
    marks: marks of its prompt, to compare it with others; none if they were not requested.
    """

    raw: bytes
    prompt_token_ids: int | None
    text_bytes: int
    messages: int
    max_tokens: int | None
    prompts: int
    sequences: int
    stream: bool
    xargs: Mapping[str, Raw]
    stream_options: Raw
    marks: PromptMarks = UNMARKED

    def with_fields(self, fields: Mapping[str, Scalar]) -> bytes:
        """Return the client's body with `fields` in its `vllm_xargs`, for the engine."""
        return self._with(XARGS, {**self.xargs, **fields})

    def xargs_with(self, fields: Mapping[str, Scalar]) -> bytes:
        """Return the client's `vllm_xargs` with `fields`, as JSON."""
        return msgspec.json.encode({**self.xargs, **fields})

    @property
    def requests_ids(self) -> bool:
        """Whether a router has added a request for token ids."""
        return self.stream and self.raw.endswith(IDS_REQUEST)

    def without_ids(self) -> "ClientBody":
        """Return the body without a router's request for token ids."""
        return replace(self, raw=self.raw.removesuffix(IDS_REQUEST) + b"}") if self.requests_ids else self

    def requesting_usage(self) -> bytes | None:
        """Return the body with a request for usage; None if it has one, or it cannot be added."""
        if not self.stream:
            return None
        raw_text = bytes(self.stream_options)
        if not raw_text:
            return self._with(STREAM_OPTIONS, {"include_usage": True})
        options = {} if raw_text == b"null" else _object(raw_text)
        requests_usage = options is None or bytes(options.get("include_usage", b"null")) not in (
            b"null",
            b"false",
        )
        if options is None or requests_usage or len(self.raw) > REWRITTEN_BYTES:
            return None
        fields = _object(self.raw) or {}
        return msgspec.json.encode({**fields, STREAM_OPTIONS: {**options, "include_usage": True}})

    def _with(self, name: str, value: Mapping[str, Any]) -> bytes:
        """Return the body with one field appended."""
        body = self.raw.rstrip()
        return body[:-1] + b',"' + name.encode() + b'":' + msgspec.json.encode(value) + b"}"


def read_body(
    endpoint: wire.Endpoint.ValueType,
    raw: bytes,
    most_sequences: int = MOST_SEQUENCES,
    *,
    marked: bool = False,
) -> ClientBody:
    """Return the checked body. Raises ApiError (400) that names an invalid field.

    most_sequences: most answers over all its prompts. marked: whether to compute `marks`.
    """
    if too_much := nesting_of(raw).too_much:
        raise ApiError(400, f"the body is {too_much}", code="too_complex")
    chat = endpoint == wire.ENDPOINT_CHAT_COMPLETIONS
    body = _decoded(_CHAT if chat else _COMPLETION, raw)
    prompt = _messages(body) if chat else _prompt(body.prompt)
    newer = body.max_completion_tokens
    return ClientBody(
        raw=raw,
        prompt_token_ids=prompt.token_ids,
        text_bytes=prompt.text_bytes,
        messages=len(body.messages) if chat else 0,
        max_tokens=newer if newer is not None else body.max_tokens,
        prompts=prompt.prompts,
        sequences=_sequences(body, prompt.prompts, most_sequences),
        stream=bool(body.stream),
        xargs=_xargs(body.vllm_xargs),
        stream_options=body.stream_options,
        marks=prompt_marks(raw) if marked else UNMARKED,
    )


def check_context(body: ClientBody, max_model_len: int) -> None:
    """Raise ApiError (400) if a prompt certainly exceeds the model's context. max_model_len: 0 if unknown."""
    tokens = body.prompt_token_ids
    if max_model_len and tokens is not None and tokens >= max_model_len:
        raise ApiError(
            400,
            f"the prompt has {tokens} tokens, but the model's context has only {max_model_len}, "
            "including the answer",
            param="prompt",
            code="context_length_exceeded",
        )


_Count = Annotated[int, Meta(ge=1)]
_Ids = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]


class _Part(msgspec.Struct):
    text: Raw = Raw()


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None  # messages that call tools have no content


class _Fields(msgspec.Struct):
    """Fields of both endpoints."""

    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    n: _Count | None = None
    best_of: _Count | None = None
    stream: bool | None = None
    stream_options: Raw = Raw()
    vllm_xargs: Raw = Raw()


class _Chat(_Fields):
    messages: Annotated[list[_Message], Meta(min_length=1)] | UnsetType = UNSET
    tools: Raw = Raw()


class _Completion(_Fields):
    prompt: Raw = Raw()


_CHAT, _COMPLETION = msgspec.json.Decoder(_Chat), msgspec.json.Decoder(_Completion)
_TEXT, _OBJECT = msgspec.json.Decoder(str), msgspec.json.Decoder(dict[str, Raw])
_IDS, _ID_LISTS = msgspec.json.Decoder(_Ids), msgspec.json.Decoder(list[_Ids])
_TEXTS = msgspec.json.Decoder(list[str])


class _Prompt(NamedTuple):
    token_ids: int | None
    text_bytes: int
    prompts: int = 1


def _decoded(decoder: msgspec.json.Decoder[Any], raw: bytes) -> Any:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raw_text = str(error)
        param = _PART.sub("", found[1]) if (found := _PATH.search(raw_text)) else ""
        reason = _PATH.sub("", raw_text)
        if not param:
            raise _invalid(None, f"the body must be a JSON object: {reason}") from None
        raise _invalid(param, f"'{param}' is invalid: {reason}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid(None, f"the body is not JSON: {error}") from None


def _object(raw: bytes) -> dict[str, Raw] | None:
    """Return an object's fields as JSON; None if it is not an object."""
    try:
        return _OBJECT.decode(raw)
    except msgspec.DecodeError:
        return None


def _invalid(param: str | None, message: str) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value")


def _messages(body: _Chat) -> _Prompt:
    if isinstance(body.messages, UnsetType):
        raise _invalid("messages", "'messages' must be a list of at least one message")
    texts = sum(_content_bytes(message.content, index) for index, message in enumerate(body.messages))
    tools = bytes(body.tools)
    return _Prompt(None, texts + (0 if tools == b"null" else len(tools)))


def _content_bytes(content: str | list[_Part] | None, index: int) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return len(content.encode())
    where = f"messages[{index}].content"
    return sum(len(_text(bytes(part.text), where).encode()) for part in content)


def _text(raw: bytes, where: str) -> str:
    """Return the text in a part; empty if it has none."""
    if not raw.startswith(b'"'):
        return ""
    try:
        return _TEXT.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _invalid(where, f"'{where}' is not valid Unicode") from None


def _prompt(raw: Raw) -> _Prompt:
    raw_text = bytes(raw)
    if raw_text.startswith(b'"'):
        return _Prompt(None, len(_decoded(_TEXT, raw_text).encode()))
    for read in (_ids, _texts, _id_lists):
        try:
            return read(raw_text)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
            continue
    kinds = "text, a list of token ids (whole numbers, 0 or more), or a list of either"
    raise _invalid("prompt", f"'prompt' must be {kinds}, and not empty")


def _xargs(raw: Raw) -> Mapping[str, Raw]:
    """Return the client's `vllm_xargs`. Engines accept only scalars in it, so a long one is an error."""
    raw_text = bytes(raw)
    if len(raw_text) > XARGS_BYTES:
        raise _invalid(XARGS, f"'{XARGS}' has {len(raw_text)} bytes; at most {XARGS_BYTES} are allowed")
    if raw_text in (b"", b"null"):
        return {}
    if (own := _object(raw_text)) is None:
        raise _invalid(XARGS, f"'{XARGS}' must be an object")
    return {name: value for name, value in own.items() if not name.startswith(PENSTOCK_FIELDS)}


def _ids(raw: bytes) -> _Prompt:
    return _Prompt(len(_IDS.decode(raw)), 0)


def _texts(raw: bytes) -> _Prompt:
    sizes = [len(text.encode()) for text in _TEXTS.decode(raw)]
    return _Prompt(None, max(sizes), len(sizes))


def _id_lists(raw: bytes) -> _Prompt:
    sizes = list(map(len, _ID_LISTS.decode(raw)))
    return _Prompt(max(sizes), 0, len(sizes))


def _sequences(body: _Fields, prompts: int, most: int) -> int:
    """Return how many answers the engine generates. Raises ApiError over the bound."""
    name, each = max((("n", body.n or 1), ("best_of", body.best_of or 1)), key=lambda field: field[1])
    if prompts * each <= most:
        return prompts * each
    param = name if each > 1 else "prompt"
    raise _invalid(param, f"'{param}' requests {prompts * each} answers; at most {most} are allowed")
