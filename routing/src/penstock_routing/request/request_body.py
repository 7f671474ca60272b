"""The fields of a body that routing needs. The body itself is forwarded unchanged.

Other fields are skipped without building their values, so the cost is one pass over the bytes whatever they
contain: 17 ms for 8 MiB of `[]`, where building the values takes 610 ms; 62 ms more to measure the nesting
depth. Bodies longer than `INLINE_BYTES` are parsed in a thread. Each step holds Python's global lock, so
other requests wait for the longest step: 29 ms for this body, 92 ms for the worst of six shapes of 8 MiB.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import Raw
from penstock_core.domain.json_nesting import MOST_LEVELS, nesting_of
from penstock_pool.requests_spec import PROXY_FIELDS, Requests
from penstock_proto import replica_pb2 as wire
from penstock_runtime.openai_errors import ApiError
from penstock_runtime.prompt_marks import PromptMarks, prompt_marks

from penstock_routing.request.forbidden_fields import ClientFields, proxy_field
from penstock_routing.request.request_head import LONGEST_SESSION

NULL = Raw(b"null")

INLINE_BYTES = 2**18
"""Longest body that is parsed on the event loop. It takes at most 2.5 ms; a thread costs 0.1 ms."""

T = TypeVar("T")


class _Routed(msgspec.Struct):
    """The fields as written in the body, each as JSON."""

    model: Raw = NULL
    stream: Raw = NULL
    service_tier: Raw = NULL
    n: Raw = NULL
    best_of: Raw = NULL
    prompt: Raw = NULL
    max_tokens: Raw = NULL
    max_completion_tokens: Raw = NULL
    messages: Raw = NULL
    prompt_cache_key: Raw = NULL
    cache_salt: Raw = NULL


_Fields = msgspec.defstruct("_Fields", [(name, Raw, NULL) for name in PROXY_FIELDS], bases=(_Routed,))


@dataclass(frozen=True, slots=True)
class BodyFields:
    """The fields of a body that the router reads.

    sequences: answers that the engine generates: its prompts times the larger of `n` and `best_of`.
    max_tokens: most tokens of each answer, if the client sets it; replicas reject an invalid value.
    prompt_cache_key: OpenAI's key for requests that share a prefix; None if it is not text.
    cache_salt: the client's own, as JSON.
    """

    model: str
    stream: bool
    service_tier: str | None
    sequences: int
    max_tokens: int | None
    prompt_cache_key: bytes | None = None
    cache_salt: bytes = b"null"


_LIST_OF_PROMPTS = re.compile(rb'\[\s*["\[]')

_fields: msgspec.json.Decoder[_Routed] = msgspec.json.Decoder(_Fields)
_text = msgspec.json.Decoder(str)
_flag = msgspec.json.Decoder(bool)
_whole = msgspec.json.Decoder(int)


class BodyReader:
    """Reads bodies. max_sequences: most sequences of a request. allowed: fields and URLs that are allowed."""

    def __init__(self, max_sequences: int, allowed: Requests) -> None:
        self._max_sequences, self._client_fields = max_sequences, ClientFields(allowed)
        items = [(f"item_{at}", Raw, NULL) for at in range(max_sequences)]
        bounded = msgspec.defstruct("Bounded", items, array_like=True, forbid_unknown_fields=True)
        self._list = msgspec.json.Decoder(bounded)  # stops at the first item beyond the bound

    async def read(self, endpoint: "wire.Endpoint.ValueType", raw: bytes) -> BodyFields:
        """Return the checked fields. Raises ApiError (400) that names an invalid one."""
        if len(raw) <= INLINE_BYTES:
            return self.parse(endpoint, raw)
        return await asyncio.to_thread(self.parse, endpoint, raw)

    async def marks(self, raw: bytes) -> PromptMarks:
        """Return the marks of a body's prompt."""
        return prompt_marks(raw) if len(raw) <= INLINE_BYTES else await asyncio.to_thread(prompt_marks, raw)

    def parse(self, endpoint: "wire.Endpoint.ValueType", raw: bytes) -> BodyFields:
        """Return the checked fields, parsed in this thread. Raises ApiError (400)."""
        fields = _split(raw)
        model = _typed("model", fields.model, _text.decode, "text")
        if model is None:
            raise _invalid("model", "'model' is missing", "missing_required_parameter")
        stream = _typed("stream", fields.stream, _flag.decode, "true or false")
        service_tier = _typed("service_tier", fields.service_tier, _text.decode, "text")
        self._check(endpoint, fields)
        sequences, max_tokens = self._sequences(endpoint, fields), _max_tokens(fields)
        cache_key = _key_text(fields.prompt_cache_key)
        return BodyFields(
            model, bool(stream), service_tier, sequences, max_tokens, cache_key, bytes(fields.cache_salt)
        )

    def _check(self, endpoint: "wire.Endpoint.ValueType", fields: _Routed) -> None:
        for name in self._client_fields.refused:
            value = getattr(fields, name)
            if value is not NULL and not _absent(value):
                raise proxy_field(name)
        if endpoint == wire.ENDPOINT_CHAT_COMPLETIONS and fields.messages is not NULL:
            self._client_fields.check_media(fields.messages)

    def _sequences(self, endpoint: "wire.Endpoint.ValueType", fields: _Routed) -> int:
        answers = self._count("n", fields.n)
        prompts = 1
        if endpoint == wire.ENDPOINT_COMPLETIONS:
            answers = max(answers, self._count("best_of", fields.best_of))
            prompts = self._prompts(fields.prompt)
        if prompts * answers > self._max_sequences:
            raise self._too_many("n", f"{prompts} prompts with {answers} answers each")
        return prompts * answers

    def _count(self, name: str, given: Raw) -> int:
        if _absent(given):
            return 1
        try:
            count = _whole.decode(given)
        except msgspec.DecodeError:
            count = 0
        if count < 1:
            raise _invalid(name, f"'{name}' must be a whole number, 1 or more", "invalid_value")
        if count > self._max_sequences:
            raise self._too_many(name, f"'{name}'")
        return count

    def _prompts(self, given: Raw) -> int:
        """Return the number of prompts in a list of texts or of lists of token ids; 1 for anything else."""
        if _LIST_OF_PROMPTS.match(given) is None:
            return 1
        try:
            items = self._list.decode(given)
        except msgspec.ValidationError:
            raise self._too_many("prompt", "this list of prompts") from None
        return sum(item is not NULL for item in msgspec.structs.astuple(items))

    def _too_many(self, param: str, subject: str) -> ApiError:
        bound = self._max_sequences
        return _invalid(
            param, f"{subject} is over the bound of {bound} sequences for one request", "invalid_value"
        )


def _key_text(given: Raw) -> bytes | None:
    """Return a text as a session of the header would be; None without one. It is only a hint."""
    if _absent(given):
        return None
    try:
        return _text.decode(given).strip().encode()[:LONGEST_SESSION] or None
    except (msgspec.DecodeError, UnicodeError):
        return None


def _max_tokens(fields: _Routed) -> int | None:
    """Return the bound on an answer, by the newer of its two names first; None if it is not an integer."""
    for given in (fields.max_completion_tokens, fields.max_tokens):
        if not _absent(given):
            try:
                return _whole.decode(given)
            except msgspec.DecodeError:
                return None
    return None


def _split(raw: bytes) -> _Routed:
    try:
        fields = _fields.decode(raw)
    except msgspec.ValidationError:
        kind = _kind(raw.lstrip())
        raise _invalid(None, f"the body must be a JSON object, not {kind}", "invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid(None, f"the body is not JSON: {error}", "invalid_json") from None
    except RecursionError:
        raise _invalid(None, f"the body is nested deeper than {MOST_LEVELS} levels", "too_complex") from None
    if problem := nesting_of(raw).too_much:
        raise _invalid(None, f"the body is {problem}", "too_complex")
    return fields


def _absent(given: Raw) -> bool:
    """Return whether a field is missing or null."""
    return given is NULL or given == NULL


def _typed(name: str, given: Raw, decode: Callable[[Any], T], expected: str) -> T | None:
    """Return the value; None for null."""
    if _absent(given):
        return None
    try:
        return decode(given)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _invalid(
            name, f"'{name}' must be {expected}, not {_kind(bytes(memoryview(given)[:1]))}", "invalid_type"
        ) from None


def _kind(given: bytes) -> str:
    """Return the kind of a JSON value by its first byte."""
    names = {b'"': "text", b"[": "a list", b"{": "an object", b"t": "true", b"f": "false", b"n": "null"}
    return names.get(given[:1], "a number")


def _invalid(param: str | None, message: str, code: str) -> ApiError:
    return ApiError(400, message, param=param, code=code)
