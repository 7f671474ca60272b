"""Bodies that a client should not send, each a few changes away from one that it may send.

A body is a list of fields with their JSON as text, not a dict: so a field may come twice, a number may be
`NaN`, and a text may hold half a surrogate pair. The changes come from one `Random`, so a seed is a body.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODEL = "llama3-8b"

Fields = list[tuple[str, bytes]]
"""Name without its quotes, and value, both as JSON."""

Change = Callable[[Random, Fields], None]


@dataclass(frozen=True, slots=True)
class Body:
    """A body with its path and headers."""

    path: str
    data: bytes
    headers: tuple[str, ...] = ()


def make_body(random: Random, most_bytes: int = 1 << 18) -> Body:
    """Return a valid body with one to four changes. Texts and lists in it have `most_bytes` at most."""
    path = random.choice((CHAT, COMPLETIONS))
    fields = _valid(random, path)
    for _ in range(random.choice((1, 1, 2, 2, 3, 4))):
        random.choice(FIELD_CHANGES)(random, fields)
    if random.random() < 0.1:
        _large(random, fields, most_bytes)
    data = b"{" + b",".join(b'"%s":%s' % (name.encode(), value) for name, value in fields) + b"}"
    if random.random() < 0.25:
        data = random.choice(BYTE_CHANGES)(random, data)
    headers = tuple(random.choice(HEADERS) for _ in range(random.choice((0, 0, 0, 1, 2))))
    return Body(path, data, headers)


def _valid(random: Random, path: str) -> Fields:
    """A request for a few tokens, streamed half of the time."""
    prompt = b'"hello"' if path == COMPLETIONS else b'[{"role":"user","content":"hello"}]'
    fields = [
        ("model", json.dumps(MODEL).encode()),
        ("prompt" if path == COMPLETIONS else "messages", prompt),
        ("max_tokens", b"%d" % random.randint(1, 8)),
        ("stream", random.choice((b"true", b"false"))),
    ]
    random.shuffle(fields)
    return fields


# Values of fields.

NUMBERS = (
    *b"0 1 -1 -0 1.0 1.5 1e3 1e308 1e309 -1e400 NaN Infinity -Infinity 01 +1 .5 1. 0x10 1_000".split(),
    *b"2147483648 4294967296 9223372036854775807 9223372036854775808 18446744073709551616 5e-324".split(),
    b"9" * 400,
    b"-" + b"9" * 5000,
    b"0." + b"3" * 5000,
    b"1e" + b"9" * 30,
)
TEXTS = (
    *rb'"" "auto" "hello" "\ud800" "\udfff\ud800" "\ud83d\ude00" "\u0000" "\u2028" "\u202e" "\uFFFF"'.split(),
    *rb'"chat" "batch" "json_object" "user" "penstock" "\\" "\/" "../../etc/passwd" "%00%s%n{0}"'.split(),
    '"\U0001f600e\u0301\u2028\ufeff"'.encode(),
    b'"\xff\xfe"',
    b'"\xed\xa0\x80"',
    b'"\xc0\xaf"',
    b'"raw\x00nul"',
    b'"raw\nline"',
    rb'"\u12"',
    rb'"\x41"',
)
OTHERS = tuple(b"null true false [] {} [[]] [{}] [null] nul True undefined [,] {,} [1,] {1:2} ''".split())
KNOWN = (
    *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "stream", "stream_options", "n"),
    *("best_of", "temperature", "top_p", "stop", "seed", "logit_bias", "logprobs", "top_logprobs", "tools"),
    *("tool_choice", "parallel_tool_calls", "response_format", "service_tier", "user", "metadata", "audio"),
    *("ignore_eos", "min_tokens", "vllm_xargs", "presence_penalty", "frequency_penalty", "guided_json"),
    *("structured_outputs", "echo", "suffix", "prompt_logprobs", "priority", "kv_transfer_params", "store"),
    *("modalities", "reasoning_effort", "prediction", "add_generation_prompt", "chat_template", "documents"),
    *("chat_template_kwargs", "cache_salt", "bad_words", "stop_token_ids", "truncate_prompt_tokens"),
)
XARGS = (
    *("penstock_id", "penstock_tier", "penstock_spent_s", "penstock_ttft_s", "penstock_tpot_s"),
    *("penstock_e2e_s", "penstock_value", "penstock_output_tokens", "penstock_sure_tokens"),
    *("penstock_best_effort", "simulated_output_tokens", "simulated_thinking_tokens", "foreign"),
)
NAMES = ["", r"\u006dodel", r"model\u0000", r"\ud800", "__proto__", "m" * 4000, "model ", "Model", r"a\"b"]


def _scalar(random: Random) -> bytes:
    return random.choice(random.choice((NUMBERS, TEXTS, OTHERS)))


def _value(random: Random, depth: int = 3) -> bytes:
    """A scalar, or a small tree of them."""
    kind = random.random()
    if depth == 0 or kind < 0.6:
        return _scalar(random)
    items = [_value(random, depth - 1) for _ in range(random.randint(0, 4))]
    if kind < 0.8:
        return b"[" + b",".join(items) + b"]"
    names = [random.choice(("role", "content", "type", "text", "function", *NAMES[:4])) for _ in items]
    pairs = zip(names, items, strict=True)
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), item) for name, item in pairs) + b"}"


def _nested(random: Random) -> bytes:
    """Return a value nested this deeply; one in five is never closed."""
    levels = random.choice((20, 90, 99, 100, 101, 150, 254, 255, 300, 512, 1000, 3000, 20_000))
    opening, closing = random.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")))
    core = random.choice((b"1", b"[]", b'"x"', b"null"))
    return opening * levels + core + (b"" if random.random() < 0.2 else closing * levels)


# Changes of fields.


def _put(fields: Fields, name: str, value: bytes) -> None:
    """Give the field this value; add it where it is missing."""
    for at, (found, _) in enumerate(fields):
        if found == name:
            fields[at] = (name, value)
            return
    fields.append((name, value))


def _wrong_value(random: Random, fields: Fields) -> None:
    _put(fields, random.choice(KNOWN), _value(random))


def _wrong_number(random: Random, fields: Fields) -> None:
    names = ("max_tokens", "max_completion_tokens", "n", "best_of", "temperature", "min_tokens", "seed")
    _put(fields, random.choice(names), random.choice(NUMBERS))


def _without_one(random: Random, fields: Fields) -> None:
    """`max_tokens` stays: an answer of any length is no fault, but takes time."""
    at = random.randrange(len(fields))
    if fields[at][0] != "max_tokens":
        del fields[at]


def _twice(random: Random, fields: Fields) -> None:
    name, value = random.choice(fields)
    fields.insert(random.randint(0, len(fields)), (name, random.choice((value, _scalar(random)))))


def _deep(random: Random, fields: Fields) -> None:
    name = random.choice((*KNOWN, "unknown"))
    _put(fields, name, _nested(random))


def _unknown_field(random: Random, fields: Fields) -> None:
    fields.insert(random.randint(0, len(fields)), (random.choice(NAMES), _value(random)))


def _many_answers(random: Random, fields: Fields) -> None:
    for name in random.sample(("n", "best_of"), random.randint(1, 2)):
        _put(fields, name, random.choice((b"2", b"3", b"32", b"33", b"128", b"1000000", b"0", b"-2", b"1.0")))


def _prompts(random: Random, fields: Fields) -> None:
    one = random.choice((b'"hi"', b"[1,2,3]", b"[]", b'""', b"7", b"[-1]", b"[1e9]", b"null", b'["hi"]'))
    count = random.choice((0, 1, 2, 8, 32, 33, 100, 5000))
    _put(fields, "prompt", b"[" + b",".join([one] * count) + b"]")


def _messages(random: Random, fields: Fields) -> None:
    part = random.choice(
        (
            b'{"type":"text","text":%s}' % _scalar(random),
            b'{"type":"image_url","image_url":{"url":"http://169.254.169.254/"}}',
            b'{"type":"input_audio","input_audio":%s}' % _value(random),
            _value(random),
        )
    )
    content = random.choice((b"[" + b",".join([part] * random.randint(0, 9)) + b"]", _value(random)))
    message = b'{"role":%s,"content":%s}' % (random.choice((b'"user"', b'"tool"', _scalar(random))), content)
    _put(fields, "messages", b"[" + b",".join([message] * random.choice((1, 1, 2, 50))) + b"]")


def _tools(random: Random, fields: Fields) -> None:
    schema = random.choice((_nested(random), _value(random), b'{"$ref":"#"}', b'{"type":"object"}'))
    tool = b'{"type":"function","function":{"name":%s,"parameters":%s}}' % (_scalar(random), schema)
    _put(fields, "tools", b"[" + b",".join([tool] * random.choice((1, 2, 300))) + b"]")


def _xargs(random: Random, fields: Fields) -> None:
    names = random.sample(XARGS, random.randint(1, 4))
    items = [b'"%s":%s' % (name.encode(), _value(random)) for name in names]
    _put(fields, "vllm_xargs", b"{" + b",".join(items) + b"}")


def _stream_options(random: Random, fields: Fields) -> None:
    names = ("include_usage", "continuous_usage_stats", "other")
    items = [b'"%s":%s' % (name.encode(), _scalar(random)) for name in names if random.random() < 0.6]
    _put(fields, "stream", random.choice((b"true", b"true", _scalar(random))))
    _put(fields, "stream_options", b"{" + b",".join(items) + b"}")


FIELD_CHANGES: tuple[Change, ...] = (
    _wrong_value,
    _wrong_value,
    _wrong_number,
    _without_one,
    _twice,
    _deep,
    _unknown_field,
    _many_answers,
    _prompts,
    _messages,
    _tools,
    _xargs,
    _stream_options,
)


def _large(random: Random, fields: Fields, most_bytes: int) -> None:
    """One field of thousands of bytes, up to `most_bytes`."""
    size = round(most_bytes ** random.uniform(0.6, 1.0))
    unit = random.choice((b'"' + b"x" * 32 + b'"', b"[]", b"1", b'{"a":1}', b'""', rb'"\ud83d\ude00"'))
    many = b"[" + b",".join([unit] * (size // (len(unit) + 1))) + b"]"
    long = b'"' + random.choice((b"x", rb"\n", "é".encode())) * (size // 2) + b'"'
    name = random.choice(
        ("messages", "prompt", "tools", "vllm_xargs", "metadata", "unknown", "model", "stop")
    )
    _put(fields, name, random.choice((many, long)))


# Changes of the bytes.


def _cut(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data))]


def _flipped(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.randint(1, 8)):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


def _inserted(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data))
    return (
        data[:at]
        + random.choice((b"{", b"}", b"[", b'"', b"\\", b"\x00", b",", b"/*", b" " * 999))
        + data[at:]
    )


def _surrounded(random: Random, data: bytes) -> bytes:
    before = random.choice((b"", b" ", b"\xef\xbb\xbf", b"\r\n\t" * 99, b"[", b"\x00", b"data: "))
    return before + data + random.choice((b"", data, b"]", b"\n\n", b"\x00", b" " * 9999, b"}" * 99))


def _other_encoding(random: Random, data: bytes) -> bytes:
    return data.decode("latin-1").encode(random.choice(("utf-16", "utf-32", "utf-7", "utf-16-be")))


BYTE_CHANGES: tuple[Callable[[Random, bytes], bytes], ...] = (
    _cut,
    _flipped,
    _inserted,
    _surrounded,
    _other_encoding,
)

HEADERS = (
    "x-penstock-tier: batch",
    "x-penstock-tier: nothing",
    "x-penstock-tier: caf\xe9",
    "x-slo-ttft-ms: NaN",
    "x-slo-ttft-ms: 1e-320",
    "x-slo-tpot-ms: -1",
    "x-llm-d-slo-tpot-ms: 9" + "9" * 400,
    "authorization: Bearer \xff\xff",
    "authorization: Basic Zm9v",
    "content-encoding: gzip",
    "content-type: text/plain",
    "x-request-id: " + "y" * 129,
    "x-request-id: a",
    "expect: 100-continue",
    "connection: close, keep-alive",
    "accept: */*;q=NaN",
    "traceparent: 00-zz-zz-99",
    "te: trailers",
    "upgrade: h2c",
)
