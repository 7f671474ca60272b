"""Response bodies byte by byte, and the stream of tokens between the step loop and a response."""

import asyncio
import json
from dataclasses import replace

import pytest
from penstock_simulator.engine.iteration import Finish
from penstock_simulator.http.request_body import ApiEndpoint
from penstock_simulator.http.responses import EventWriter, ResponseHead, json_response, usage_of
from penstock_simulator.http.synthetic_text import AnswerStart, answer_ids, synthetic_text
from penstock_simulator.serving.token_stream import Aborted, TokenStream

CHAT = ResponseHead(ApiEndpoint.CHAT, "chatcmpl-1", "tiny", 1700, AnswerStart(3, 0))
TEXT = ResponseHead(ApiEndpoint.COMPLETION, "cmpl-1", "tiny", 1700, AnswerStart(3, 0))


def words_of(first: int, stop: int) -> str:
    return synthetic_text(range(first, stop), 3)


def events(data: bytes) -> list[str]:
    """Return each event from its choices on; the fields before them are the same in all."""
    *lines, end = data.decode().split("\n\n")
    assert end == ""
    heads = {
        '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700,"model":"tiny",',
        '{"id":"cmpl-1","object":"text_completion","created":1700,"model":"tiny",',
    }
    read = []
    for line in lines:
        assert line.startswith("data: ")
        head, found, rest = line.removeprefix("data: ").partition('"choices":')
        assert not found or head in heads
        read.append(rest or head)
    return read


def delta(fields: str, reason: str = "null", more: str = "") -> str:
    return f'[{{"index":0,"delta":{{{fields}}},"logprobs":null,"finish_reason":{reason}{more}}}]}}'


ROLE = delta('"role":"assistant","content":""')
STOP = ',"stop_reason":null'


def test_a_streamed_chat_has_its_events() -> None:
    writer = EventWriter(CHAT)
    assert events(writer.tokens(range(2))) == [ROLE, delta(f'"content":"{words_of(0, 2)}"')]
    assert events(writer.tokens(range(2, 3))) == [delta(f'"content":"{words_of(2, 3)}"')]
    last = delta(f'"content":"{words_of(3, 5)}"', '"stop"', STOP)
    assert events(writer.end(range(3, 5), Finish.STOP, None)) == [last, "[DONE]"]
    usage = '[],"usage":{"prompt_tokens":7,"total_tokens":12,"completion_tokens":5}}'
    assert events(writer.end(range(3, 5), Finish.STOP, usage_of(7, 5))) == [last, usage, "[DONE]"]


def test_an_answer_of_one_event_has_its_role() -> None:
    only = delta(f'"content":"{words_of(0, 1)}"', '"length"', STOP)
    assert events(EventWriter(CHAT).end(range(1), Finish.LENGTH, None)) == [ROLE, only, "[DONE]"]


def test_thinking_is_in_its_own_field() -> None:
    writer = EventWriter(CHAT, thinking_tokens=3)
    thought = delta(f'"reasoning_content":"{words_of(0, 2)}"')
    both = delta(f'"reasoning_content":"{words_of(2, 3)}","content":"{words_of(3, 4)}"')
    assert events(writer.tokens(range(2))) == [ROLE, thought]
    assert events(writer.tokens(range(2, 4))) == [both]
    assert events(writer.tokens(range(2, 3))) == [delta(f'"reasoning_content":"{words_of(2, 3)}"')]
    assert events(writer.tokens(range(3, 4))) == [delta(f'"content":"{words_of(3, 4)}"')]


def test_a_completions_events_have_no_role_and_no_thinking() -> None:
    writer = EventWriter(TEXT, thinking_tokens=3)
    choice = f'[{{"index":0,"text":"{words_of(0, 2)}","logprobs":null,"finish_reason":null}}]}}'
    assert events(writer.tokens(range(2))) == [choice]
    last = f'[{{"index":0,"text":"{words_of(0, 1)}","logprobs":null,"finish_reason":"stop"{STOP}}}]}}'
    assert events(writer.end(range(1), Finish.STOP, None)) == [last, "[DONE]"]


@pytest.mark.parametrize(
    ("thinking", "message"),
    [
        (0, {"content": words_of(0, 4)}),
        (3, {"content": words_of(3, 4), "reasoning_content": words_of(0, 3)}),
        (4, {"content": None, "reasoning_content": words_of(0, 4)}),
        (9, {"content": None, "reasoning_content": words_of(0, 4)}),
    ],
)
def test_a_whole_chat_has_its_message_and_usage(thinking: int, message: dict[str, object]) -> None:
    body = json.loads(json_response(CHAT, 4, thinking, Finish.STOP, usage_of(7, 4)))
    assert body == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "refusal": None, "tool_calls": [], **message},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {"prompt_tokens": 7, "total_tokens": 11, "completion_tokens": 4},
    }


def test_a_whole_completion_has_its_text_and_usage() -> None:
    body = json.loads(json_response(TEXT, 4, 3, Finish.LENGTH, usage_of(7, 4)))
    (choice,) = body["choices"]
    assert (body["object"], choice["text"], choice["finish_reason"]) == (
        "text_completion",
        words_of(0, 4),
        "length",
    )
    assert "message" not in choice


IDS = replace(CHAT, answer=AnswerStart(3, 4), prompt_ids=[7, 8])
"""With token ids, of an answer whose first four tokens are in the prompt."""


def ids(first: int, stop: int) -> str:
    return json.dumps(answer_ids(range(first, stop), 3)).replace(" ", "")


def test_a_chats_events_have_token_ids_on_request() -> None:
    writer = EventWriter(IDS)
    role = ROLE.removesuffix("}") + ',"prompt_token_ids":[7,8]}'
    first = delta(f'"content":"{words_of(4, 6)}"', more=f',"token_ids":{ids(4, 6)}')
    assert events(writer.tokens(range(2))) == [role, first]
    assert events(writer.tokens(range(2, 3))) == [
        delta(f'"content":"{words_of(6, 7)}"', more=f',"token_ids":{ids(6, 7)}')
    ]
    last = delta(f'"content":"{words_of(7, 8)}"', '"stop"', f'{STOP},"token_ids":{ids(7, 8)}')
    assert events(writer.end(range(3, 4), Finish.STOP, None)) == [last, "[DONE]"]


def test_a_completions_first_event_has_the_prompts_token_ids() -> None:
    writer = EventWriter(replace(IDS, endpoint=ApiEndpoint.COMPLETION, id="cmpl-1"))
    more = f'"logprobs":null,"finish_reason":null,"token_ids":{ids(4, 6)},"prompt_token_ids":[7,8]'
    assert events(writer.tokens(range(2))) == [f'[{{"index":0,"text":"{words_of(4, 6)}",{more}}}]}}']
    (last, _) = events(writer.end(range(2, 3), Finish.STOP, None))
    assert last.endswith(f'"stop_reason":null,"token_ids":{ids(6, 7)}}}]}}')


@pytest.mark.parametrize("endpoint", ApiEndpoint)
def test_a_whole_answer_has_its_token_ids(endpoint: ApiEndpoint) -> None:
    head = replace(IDS, endpoint=endpoint)
    body = json.loads(json_response(head, 2, 0, Finish.STOP, usage_of(2, 2)))
    beside, other = (body, body["choices"][0]) if endpoint is ApiEndpoint.CHAT else (body["choices"][0], body)
    assert body["choices"][0]["token_ids"] == answer_ids(range(4, 6), 3)
    assert (beside["prompt_token_ids"], "prompt_token_ids" in other) == ([7, 8], False)


async def test_a_stream_returns_each_token_once() -> None:
    stream = TokenStream("a", 1.0)
    stream.put(2, None, 3.0)
    stream.put(1, None, 4.0)
    assert await stream.take() == range(3)
    assert (stream.first_s, stream.last_s, stream.tokens, stream.finish) == (3.0, 4.0, 3, None)
    taking = asyncio.create_task(stream.take())
    await asyncio.sleep(0)
    assert not taking.done()
    stream.put(1, Finish.STOP, 5.0)
    stream.put(1, Finish.STOP, 6.0)
    assert await taking == range(3, 5)
    assert (stream.first_s, stream.last_s, stream.finish) == (3.0, 6.0, Finish.STOP)


async def test_an_aborted_stream_ends_present_and_later_readers() -> None:
    stream = TokenStream("a", 1.0)
    taking = asyncio.create_task(stream.take())
    await asyncio.sleep(0)
    stream.abort()
    with pytest.raises(Aborted):
        await taking
    stream.put(1, None, 2.0)
    with pytest.raises(Aborted):
        await stream.take()
