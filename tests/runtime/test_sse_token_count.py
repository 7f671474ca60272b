import pytest
from penstock_proto.sse import EVENT_BYTES, EngineUsage, TokenCount, usage_of_body

OPENING = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"data: a\\n\\nb"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
CHAT = OPENING + TOKEN * 3 + USAGE + DONE


def counted(*parts: bytes) -> TokenCount:
    count = TokenCount()
    for part in parts:
        count.feed(part)
    return count


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_tokens_are_counted_in_any_split_of_the_stream(size: int) -> None:
    for stream in (CHAT, CHAT.replace(b"\n", b"\r\n")):
        count = counted(*(stream[at : at + size] for at in range(0, len(stream), size)))
        assert (count.tokens, count.usage, count.done) == (3, EngineUsage(9, 3), True)


def test_each_chunk_counts_its_own_tokens() -> None:
    count = TokenCount()
    assert [count.feed(part) for part in (OPENING, TOKEN, TOKEN * 2, USAGE, DONE)] == [0, 1, 2, 0, 0]


def test_a_stream_without_opening_counts_from_its_first_event() -> None:
    count = counted(b'data: {"choices":[{"text":"a"}]}\n\n', b'data: {"choices":[{"text":""}]}\n\n')
    assert count.tokens == 2


def test_a_token_with_usage_counts() -> None:
    token = TOKEN.replace(b"}\n", b',"usage":{"prompt_tokens":9,"completion_tokens":1}}\n')
    assert counted(TOKEN, token).tokens == 2
    assert (counted(token).usage, counted(token).tokens) == (EngineUsage(9, 1), 1)
    empty = token.replace(b'"content":"data: a\\n\\nb"', b'"content":""')
    assert (counted(empty).tokens, counted(token, empty).tokens) == (0, 2), (
        "an empty one opens, if it is the first"
    )


def test_comments_and_fields_other_than_data_do_not_count() -> None:
    assert counted(b": ping\n\n", b"event: x\n\n", TOKEN).tokens == 1


def test_an_event_without_end_does_not_grow_the_buffer() -> None:
    count = counted(*[b"x" * 4096] * (2 * EVENT_BYTES // 4096))
    assert count.tokens == 0
    assert count.feed(b"\n\n" + TOKEN) <= 2
    assert not count.done


def test_usage_of_a_whole_answer_is_read() -> None:
    assert usage_of_body(b'{"usage":{"prompt_tokens":4,"completion_tokens":2}}') == EngineUsage(4, 2)
    for details, cached in (
        (b'{"cached_tokens":3}', 3),
        (b'{"cached_tokens":9}', 4),
        (b"null", None),
        (b"{}", None),
    ):
        reported = (
            b'{"usage":{"prompt_tokens":4,"completion_tokens":2,"prompt_tokens_details":' + details + b"}}"
        )
        assert usage_of_body(reported) == EngineUsage(4, 2, cached)
    assert usage_of_body(b'{"usage":{"prompt_tokens":4,"completion_tokens":16777216}}') is not None
    for more in (
        b'"prompt_tokens":4,"completion_tokens":16777217',
        b'"prompt_tokens":1e3,"completion_tokens":1',
    ):
        assert usage_of_body(b'{"usage":{' + more + b"}}") is None, "it cannot be true"
    for nothing in (b"", b"[]", b"{}", b'{"usage":null}', b'{"usage":{"prompt_tokens":-1}}', b"<html>"):
        assert usage_of_body(nothing) is None


def delta(fields: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{' + fields.encode() + b"}}]}\n\n"


REASONING, CONTENT = delta('"reasoning_content":"hm"'), delta('"content":"yes"')


@pytest.mark.parametrize(
    ("events", "thinking_tokens"),
    [
        ([OPENING, REASONING, REASONING, CONTENT, CONTENT], 2),
        (
            [
                delta('"role":"assistant","reasoning":"hm"'),
                REASONING,
                delta('"reasoning":null,"content":"a"'),
            ],
            2,
        ),
        ([REASONING, delta('"reasoning_content":"so","content":"yes"'), CONTENT], 2),
        ([REASONING, delta('"tool_calls":[{}]')], 1),
        ([REASONING, REASONING], 0),
        ([CONTENT, REASONING, CONTENT], 0),
        ([delta('"content":"say \\"reasoning\\":\\"x"'), CONTENT], 0),
    ],
    ids=["apart", "other names", "both in one", "tool call", "still thinking", "none first", "quoted"],
)
@pytest.mark.parametrize("size", [1, 10_000], ids=["in bytes", "at once"])
def test_thinking_ends_where_the_answer_begins(events: list[bytes], thinking_tokens: int, size: int) -> None:
    for stream in (b"".join(events), b"".join(events).replace(b'":', b'": ')):
        count = counted(*(stream[at : at + size] for at in range(0, len(stream), size)))
        assert count.thinking_tokens == thinking_tokens
        assert count.tokens == len(events) - (OPENING in events)
