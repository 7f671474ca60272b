"""A stream that is cut anywhere and continued is the stream that was not cut: the pure part."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_proto import replica_pb2 as wire
from penstock_router.moving.continued_body import continued_body, requesting_ids, tokens_left
from penstock_router.moving.continued_events import (
    ContinuedEvents,
    NotAContinuation,
    closing_events,
    joined_usage,
)
from penstock_router.moving.eligibility import why_fixed
from penstock_router.moving.transcript import Transcript
from scripted.simulated import events_of

CHAT, COMPLETION = wire.ENDPOINT_CHAT_COMPLETIONS, wire.ENDPOINT_COMPLETIONS
ASKED: dict[str, Any] = {
    "model": "test/model",
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0,
    "vllm_xargs": {"simulated_output_tokens": 70},
    "max_tokens": 90,
}
BODIES: dict["wire.Endpoint.ValueType", dict[str, Any]] = {
    CHAT: ASKED | {"messages": [{"role": "user", "content": "hello there"}]},
    COMPLETION: ASKED | {"prompt": "once upon a time"},
}


def passed_by(transcript: Transcript, pieces: list[bytes]) -> bytes:
    """Return the bytes that a client gets of these pieces."""
    out = bytearray()

    def relay(data: bytes, tokens: int) -> bool:
        out.extend(data)
        return True

    for piece in pieces:
        relay_through = transcript.relay_through(relay)
        if relay_through is None or not relay_through(piece, 1):
            out.extend(b"".join(transcript.read(piece)))
    return bytes(out)


def relayed(events: list[bytes], *, taken: bool = True) -> tuple[Transcript, list[bytes]]:
    """The transcript of events, the first one read and all others passed on where they are ordinary."""
    transcript, out = Transcript(), list[bytes]()

    def relay(data: bytes, tokens: int) -> bool:
        out.append(data)
        return taken

    transcript.read(events[0])
    for event in events[1:]:
        relay_through = transcript.relay_through(relay)
        if relay_through is not None:
            relay_through(event, 1)
    return transcript, out


def chunks_of(stream: bytes) -> list[dict[str, Any]]:
    return [
        orjson.loads(event[6:]) for event in stream.split(b"\n\n") if event and not event.endswith(b"[DONE]")
    ]


def message(stream: bytes) -> str:
    choices = [choice for chunk in chunks_of(stream) for choice in chunk["choices"]]
    return "".join(
        choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices
    )


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETION], ids=["chat", "completion"])
@given(
    parts=st.lists(st.floats(0.02, 0.98), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    shorter=st.integers(0, 20),
)
def test_a_stream_cut_at_any_byte_continues_as_if_it_were_whole(
    endpoint: "wire.Endpoint.ValueType", parts: list[float], sizes: list[int], shorter: int
) -> None:
    client = BODIES[endpoint] | {"max_tokens": 75 - shorter}
    body = requesting_ids(orjson.dumps(client)) or b""
    plain = b"".join(events_of(endpoint, orjson.dumps(client), engine="a"))
    transcript, out = Transcript(), b""
    events: ContinuedEvents | None = None
    asked_at, requested = endpoint, body
    for number, cut in enumerate([*parts, 1.0]):
        pieces = events_of(asked_at, requested, engine="abcd"[number], sizes=sizes)
        stream = b"".join(pieces)
        if cut < 1.0:
            end = int(cut * len(stream))
            whole = [piece for at, piece in enumerate(pieces) if len(b"".join(pieces[: at + 1])) <= end]
            pieces = [*whole, stream[len(b"".join(whole)) : end]]
        got = passed_by(transcript, [piece for piece in pieces if piece])
        out += got if events is None else b"".join(map(events.rewritten, _events(got)))
        if transcript.done:
            break
        kept = transcript.kept_ids()
        if transcript.finished or tokens_left(endpoint, client, len(kept)) == 0:
            usage = None if transcript.usage_sent else (len(transcript.prompt_ids), transcript.tokens())
            out += closing_events(
                transcript.head(), chat=endpoint == CHAT, finished=transcript.finished, usage=usage
            )
            break
        if transcript.begun:
            events = ContinuedEvents(transcript.head(), endpoint == CHAT, len(kept))
        transcript.continue_after(kept)
        if kept:
            asked_at = COMPLETION
            requested = continued_body(endpoint, orjson.loads(body), transcript.prompt_ids, kept)
    assert message(out) == message(plain)
    first, *_, last = chunks_of(out)
    assert {tuple(chunk[name] for name in ("id", "created", "object")) for chunk in chunks_of(out)} == {
        (first["id"], first["created"], first["object"])
    }
    assert last["usage"] == chunks_of(plain)[-1]["usage"]
    reasons = [choice["finish_reason"] for chunk in chunks_of(out) for choice in chunk["choices"]]
    assert [one for one in reasons if one] == ["length" if 75 - shorter <= 70 else "stop"]
    assert out.count(b'"role"') == (endpoint == CHAT)
    assert b"token_ids" not in out
    assert out.endswith(b"data: [DONE]\n\n")


def _events(data: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in data.split(b"\n\n")[:-1]]


def token(text: str, *ids: int, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish, "token_ids": ids}
    return b"data: " + orjson.dumps({"id": "x", "choices": [choice]}) + b"\n\n"


def plain(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: " + orjson.dumps({"id": "x", "choices": [choice]}) + b"\n\n"


def test_trailing_tokens_without_text_are_left_to_the_continuation() -> None:
    """A character is not complete: a prompt that ends inside it would be answered by other text."""
    transcript = Transcript()
    passed_by(transcript, [token("a", 1), token("", 2), token("é", 3), token("", 4), token("", 5)])
    assert transcript.kept_ids() == [1, 2, 3]


def test_of_an_event_with_several_tokens_the_last_may_have_no_text_yet() -> None:
    transcript = Transcript()
    assert transcript.uncertain_tokens() == 0
    for piece, unsure in [
        (token("a", 1), 0),
        (token("b", 2, 3), 1),
        (token("c", 4), 0),
        (token("d", 5, 6, 7), 2),
        (token("", 8), 2),
    ]:
        passed_by(transcript, [piece])
        assert transcript.uncertain_tokens() == unsure
    transcript.continue_after([1, 2])
    assert transcript.uncertain_tokens() == 0


def test_ordinary_events_are_forwarded_without_parsing() -> None:
    transcript, out = relayed(
        [token("a", 1), token("b", 23), token("", 4), token('"]', 5, 67), token("é", 8)]
    )
    assert out == [plain(text) for text in ("b", "", '"]', "é")]
    assert transcript.kept_ids() == [1, 23, 4, 5, 67, 8]


ORDINARY = token("b", 2)


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        (b"null", b'"stop"'),
        (b'"content":"b"', b'"reasoning":"b"'),
        (b'"index":0', b'"index":1'),
        (b"[2]", b'[2],"x":[3]'),
        (b"}]}\n", b'}],"usage":{}}\n'),
        (b',"token_ids":[2]', b""),
        (b'null,"token_ids":[2]}]}\n\n', b"nu"),
        (ORDINARY, b"data: [DONE]\n\n"),
    ],
    ids=["an end", "thinking", "another choice", "another field", "usage", "no ids", "a part", "done"],
)
def test_an_event_of_another_form_is_parsed(part: bytes, instead: bytes) -> None:
    assert part in ORDINARY
    transcript, out = relayed([token("a", 1), ORDINARY.replace(part, instead)])
    assert (transcript.kept_ids(), out) == ([1], [])


def test_events_that_arrive_together_are_forwarded_together() -> None:
    three = token("b", 2) + token("", 3) + token("c", 4, 5)
    transcript, out = relayed([token("a", 1), three, token("", 6) + token("", 7)])
    assert out == [plain("b") + plain("") + plain("c"), plain("") + plain("")]
    assert transcript.kept_ids() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("other", [token("c", 3, finish="stop"), b"data: [DONE]\n\n", token("c", 3)[:-1]])
def test_events_that_arrive_with_one_of_another_form_are_parsed(other: bytes) -> None:
    for data in (token("b", 2) + other, other + token("b", 2)):
        transcript, out = relayed([token("a", 1), data])
        assert (transcript.kept_ids(), out) == ([1], [])


def test_an_event_that_the_client_does_not_read_is_not_recorded() -> None:
    transcript, out = relayed([token("a", 1), token("b", 2)], taken=False)
    assert (transcript.kept_ids(), out) == ([1], [plain("b")])


def test_the_end_of_an_answer_is_recorded() -> None:
    transcript, _ = relayed([token("a", 1), token("b", 2)])
    assert not transcript.finished
    passed_by(transcript, [token("c", 3, finish="stop")])
    assert transcript.finished


def test_a_prompt_is_stored_unparsed_until_it_is_needed() -> None:
    transcript = Transcript()
    assert transcript.prompt_ids == []
    first = {"choices": [{"index": 0, "text": "a", "token_ids": [3]}], "prompt_token_ids": [7, 8]}
    passed_by(transcript, [b"data: " + orjson.dumps(first) + b"\n\n", token("b", 4)])
    assert transcript.prompt_ids == [7, 8]
    transcript.continue_after([3, 4])
    passed_by(transcript, [b"data: " + orjson.dumps(first | {"prompt_token_ids": [7, 8, 3, 4]}) + b"\n\n"])
    assert (transcript.prompt_ids, transcript.kept_ids()) == ([7, 8], [3, 4, 3])


def test_an_answer_that_ends_without_text_counts_all_tokens() -> None:
    transcript = Transcript()
    passed_by(transcript, [token("a", 1), token("b", 2), token("", 3), token("", 4, finish="length")])
    assert (transcript.kept_ids(), transcript.tokens()) == ([1, 2], 4)
    transcript.continue_after([1, 2])
    passed_by(transcript, [token("c", 5)])
    assert transcript.tokens() == 3


def test_thinking_ends_with_the_first_text_of_the_answer() -> None:
    transcript = Transcript()
    thought = {"index": 0, "delta": {"reasoning": "hm"}, "finish_reason": None, "token_ids": [1]}
    passed_by(transcript, [b"data: " + orjson.dumps({"choices": [thought]}) + b"\n\n"])
    assert transcript.thinks
    assert transcript.kept_ids() == [1]
    assert transcript.thinks
    passed_by(transcript, [token("so", 2)])
    assert not transcript.thinks


@pytest.mark.parametrize(
    "stream",
    [
        b'data: {"choices":[{"text":"a"}]}\n\n',
        b'data: {"choices":[{"text":"a","token_ids":null}]}\n\n',
        b'data: {"a":1}\r\n\r\n',
        b"data: " + b"x" * (1 << 21) + b"\n\n",
    ],
    ids=["no ids", "null", "other line ends", "a long event"],
)
def test_a_stream_without_token_ids_is_forwarded(stream: bytes) -> None:
    transcript = Transcript()
    out = passed_by(transcript, [stream, b"what", b"ever"])
    assert transcript.opaque
    assert out == stream.replace(b',"token_ids":null', b"") + b"whatever"


def test_comments_are_not_part_of_an_answer() -> None:
    """Proxies write them while no token is ready, also before the first."""
    transcript = Transcript()
    assert passed_by(transcript, [b": wait\n\n", b"retry: 9\n\n"]) == b": wait\n\nretry: 9\n\n"
    assert not transcript.begun
    out = passed_by(transcript, [token("a", 1) + b": wait\n\n" + token("b", 2)])
    assert message(out.replace(b": wait\n\n", b"")) == "ab"
    assert (transcript.kept_ids(), transcript.opaque) == ([1, 2], False)
    assert transcript.head().keys() <= {"id", "object", "created", "model"}


def test_a_stream_of_events_with_other_fields_is_forwarded() -> None:
    transcript = Transcript()
    assert passed_by(transcript, [b"event: message\n" + token("a", 1)]) == b"event: message\n" + plain("a")
    assert transcript.opaque


def test_a_failure_that_the_engine_reports_is_not_forwarded() -> None:
    transcript = Transcript()
    failure = b'data: {"error":{"message":"EngineCore died","code":500}}\n\n'
    out = passed_by(transcript, [token("a", 1), token("b", 2) + failure, b"data: [DONE]\n\n"])
    assert message(out) == "ab"
    assert (transcript.failure, transcript.done) == (failure, False)
    assert transcript.kept_ids() == [1, 2]


def test_an_event_in_parts_is_passed_on_once_it_is_whole() -> None:
    transcript, event = Transcript(), token("a", 1)
    assert passed_by(transcript, [event[:20]]) == b""
    assert message(passed_by(transcript, [event[20:] + event[:9]])) == "a"
    assert transcript.take_rest() == event[:9]
    assert transcript.take_rest() == b""


MOVABLE: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"n": 2}, "several answers"),
        ({"best_of": 3}, "several answers"),
        ({"response_format": {"type": "json_object"}}, "structured"),
        ({"structured_outputs": {"regex": "a"}}, "structured"),
        ({"guided_choice": ["a"]}, "structured"),
        ({"tools": [{}]}, "tools"),
        ({"functions": [{}], "tool_choice": "auto"}, "tools"),
        ({"logprobs": True}, "log probabilities"),
        ({"logprobs": 0}, "log probabilities"),
        ({"presence_penalty": 0.5}, "penalty"),
        ({"frequency_penalty": -1}, "penalty"),
        ({"seed": 0}, "seed"),
        ({"seed": 7, "temperature": 0.5}, "seed"),
        ({"stop": ["x"]}, "stop strings"),
        ({"echo": True}, "contains its prompt"),
        ({"use_beam_search": True}, "beam search"),
        ({"prompt_embeds": "x"}, "inputs other than tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "than text"),
    ],
)
def test_reasons_why_a_stream_cannot_move_are_named(field: dict[str, Any], words: str) -> None:
    assert words in (why_fixed(CHAT, MOVABLE | field) or "")


@pytest.mark.parametrize(
    "field",
    [
        {},
        {"n": 1, "best_of": None, "stop": [], "tools": [], "logprobs": False, "echo": False},
        {"presence_penalty": 0, "repetition_penalty": 1.2, "logit_bias": {"1": 2}},
        {"seed": 7, "temperature": 0},
        {"tools": [{}], "tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant"}]},
    ],
)
def test_all_other_requests_can_be_continued(field: dict[str, Any]) -> None:
    assert why_fixed(CHAT, MOVABLE | field) is None


def test_only_a_single_prompt_can_be_continued() -> None:
    assert why_fixed(COMPLETION, {"prompt": ["a", "b"]}) == "it has several prompts"
    assert why_fixed(COMPLETION, {"prompt": [1, 2]}) is None
    assert why_fixed(COMPLETION, {"prompt": [[1, 2]]}) is None


def test_a_continued_request_has_the_remaining_bounds_and_no_prompt_fields() -> None:
    requested = BODIES[CHAT] | {
        "max_completion_tokens": 50,
        "min_tokens": 4,
        "chat_template": "x",
        "top_k": 3,
    }
    body = orjson.loads(continued_body(CHAT, requested, [7, 8], [9, 10, 11]))
    assert body == ASKED | {
        "prompt": [7, 8, 9, 10, 11],
        "max_tokens": 47,
        "min_tokens": 1,
        "top_k": 3,
        "return_token_ids": True,
    }
    assert orjson.loads(continued_body(CHAT, {"model": "m"}, [1], [2]))["max_tokens"] is None
    assert orjson.loads(continued_body(COMPLETION, {"model": "m"}, [1], [2]))["max_tokens"] == 15
    assert orjson.loads(continued_body(COMPLETION, {"max_tokens": None}, [1], [2]))["max_tokens"] is None


def test_ids_are_not_requested_where_the_client_s_body_mentions_them() -> None:
    assert requesting_ids(b'{"model":"m","return_token_ids":false}') is None
    assert requesting_ids(b'{"model":"m"} \n') == b'{"model":"m","return_token_ids":true}'


def test_usage_counts_the_clients_prompt_and_the_whole_answer() -> None:
    reported = {"prompt_tokens": 30, "total_tokens": 35, "completion_tokens": 5}
    whole = {"prompt_tokens": 20, "total_tokens": 35, "completion_tokens": 15}
    assert joined_usage(reported, 10) == whole
    cached = {"prompt_tokens_details": {"cached_tokens": 28, "audio_tokens": 0}}
    assert joined_usage(reported | cached, 10) == whole | {
        "prompt_tokens_details": {"cached_tokens": 20, "audio_tokens": 0}
    }
    figures = ContinuedEvents({}, True, 10).finished(
        wire.Finished(prompt_tokens=30, completion_tokens=5, cached_tokens=28)
    )
    assert (figures.prompt_tokens, figures.completion_tokens, figures.cached_tokens) == (20, 15, 20)


def test_events_that_arrive_together_are_each_translated() -> None:
    events = ContinuedEvents({"id": "first"}, True, 5)
    text = b'data: {"id":"x","choices":[{"index":0,"text":"%s"}]}\n\n'
    chunks = chunks_of(events.rewritten(text % b"a" + text % b"b"))
    assert [chunk["id"] for chunk in chunks] == ["first", "first"]
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"content": "a"}, {"content": "b"}]
    assert events.rewritten(b"data: [DONE]\n\n") == b"data: [DONE]\n\n"


def test_a_stream_that_begins_with_the_whole_prompt_is_not_accepted() -> None:
    events = ContinuedEvents({"id": "a"}, True, 5)
    with pytest.raises(NotAContinuation):
        events.rewritten(b"data: " + orjson.dumps({"choices": [{"index": 0, "text": "x" * 500}]}) + b"\n\n")
