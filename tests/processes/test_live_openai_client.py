"""The official client, unmodified, against a whole pool."""

import asyncio
from typing import Any

import openai
import pytest
from live.pool import LivePool
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk, ChatCompletionUserMessageParam

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello"}]
TO_THE_END: dict[str, Any] = {"ignore_eos": True}
"""vLLM's field for an answer of exactly `max_tokens`; unknown to OpenAI, so it also has to pass through."""


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def words_of(chunks: list[ChatCompletionChunk]) -> int:
    return sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks)


def test_a_chat_is_answered_whole(pool: LivePool) -> None:
    with pool.client() as client:
        answer = client.chat.completions.create(
            model=pool.model, messages=HELLO, max_tokens=5, extra_body=TO_THE_END
        )
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5


def test_thinking_is_streamed_before_the_answer(pool: LivePool) -> None:
    long = {"simulated_output_tokens": 12, "simulated_thinking_tokens": 5}
    with pool.client() as client:
        stream = client.chat.completions.create(
            model=pool.model, messages=HELLO, max_tokens=20, stream=True, extra_body={"vllm_xargs": long}
        )
        deltas = [chunk.choices[0].delta for chunk in stream]
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    output = "".join(delta.content or "" for delta in deltas)
    assert (len(thought.split()), len(output.split())) == (5, 7)


def test_a_chat_is_streamed_word_by_word(pool: LivePool) -> None:
    with pool.client() as client:
        chunks = list(
            client.chat.completions.create(
                model=pool.model, messages=HELLO, max_tokens=12, stream=True, extra_body=TO_THE_END
            )
        )
    assert words_of(chunks) == 12
    assert text_of(chunks)
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert all(chunk.usage is None for chunk in chunks), "usage was not asked for"
    assert len({chunk.id for chunk in chunks}) == 1


def test_requested_usage_is_the_last_event(pool: LivePool) -> None:
    with pool.client() as client:
        chunks = list(
            client.chat.completions.create(
                model=pool.model,
                messages=HELLO,
                max_tokens=7,
                stream=True,
                stream_options={"include_usage": True},
                extra_body=TO_THE_END,
            )
        )
    assert words_of(chunks) == 7
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 7
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_completion_is_answered_whole(pool: LivePool) -> None:
    with pool.client() as client:
        answer = client.completions.create(
            model=pool.model, prompt="once upon a time", max_tokens=6, extra_body=TO_THE_END
        )
    assert answer.object == "text_completion"
    assert answer.choices[0].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6


def test_a_completion_of_token_ids_is_streamed(pool: LivePool) -> None:
    with pool.client() as client:
        chunks: list[Completion] = list(
            client.completions.create(
                model=pool.model,
                prompt=list(range(100, 164)),
                max_tokens=6,
                stream=True,
                stream_options={"include_usage": True},
                extra_body=TO_THE_END,
            )
        )
    assert sum(bool(chunk.choices and chunk.choices[0].text) for chunk in chunks) == 6
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 64


async def test_the_async_client_gets_a_whole_answer(pool: LivePool) -> None:
    async with pool.async_client() as client:
        answer = await client.chat.completions.create(
            model=pool.model, messages=HELLO, max_tokens=3, extra_body=TO_THE_END
        )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


async def test_sixty_concurrent_streams_get_their_own_tokens(pool: LivePool) -> None:
    async def one(client: openai.AsyncOpenAI, tokens: int) -> tuple[int, int, int]:
        stream = await client.chat.completions.create(
            model=pool.model,
            messages=HELLO,
            max_tokens=tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=TO_THE_END,
        )
        chunks = [chunk async for chunk in stream]
        usage = chunks[-1].usage
        return words_of(chunks), usage.completion_tokens if usage else 0, len({chunk.id for chunk in chunks})

    async with pool.async_client() as client:
        seen = await asyncio.gather(*(one(client, tokens) for tokens in range(1, 61)))
    assert seen == [(tokens, tokens, 1) for tokens in range(1, 61)]


async def test_one_connection_serves_consecutive_streams(pool: LivePool) -> None:
    async with pool.async_client() as client:
        for _ in range(3):
            stream = await client.chat.completions.create(
                model=pool.model, messages=HELLO, max_tokens=2, stream=True, extra_body=TO_THE_END
            )
            assert words_of([chunk async for chunk in stream]) == 2


@pytest.mark.parametrize("word", ["auto", "default", "flex", "priority"])
def test_openais_own_service_tiers_are_served(pool: LivePool, word: Any) -> None:
    with pool.client() as client:
        raw = client.chat.completions.with_raw_response.create(
            model=pool.model, messages=HELLO, max_tokens=1, service_tier=word
        )
    assert raw.headers["x-penstock-tier"] == "chat"


def test_unknown_fields_are_forwarded(pool: LivePool) -> None:
    with pool.client() as client:
        answer = client.chat.completions.create(
            model=pool.model,
            messages=HELLO,
            max_tokens=4,
            temperature=0.5,
            user="u-1",
            seed=7,
            metadata={"team": "mill"},
            extra_body={**TO_THE_END, "a_field_of_tomorrow": {"deep": [1, None, {"x": "y"}]}},
        )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4, "ignore_eos reached the engine"


def test_response_headers_have_tier_verdict_and_replica(pool: LivePool) -> None:
    with pool.client() as client:
        raw = client.chat.completions.with_raw_response.create(
            model=pool.model, messages=HELLO, max_tokens=1, extra_headers={"x-request-id": "mill-17"}
        )
    assert raw.parse().choices
    assert raw.headers["x-request-id"] == "mill-17"
    assert raw.headers["x-penstock-tier"] == "chat"
    assert raw.headers["x-penstock-verdict"] == "admitted"
    assert raw.headers["x-penstock-replica"] in pool.replicas
    assert raw.headers["x-penstock-hops"] == "1"
    assert raw.headers["content-type"].startswith("application/json")


def test_streams_have_the_same_headers(pool: LivePool) -> None:
    with (
        pool.client() as client,
        client.chat.completions.create(model=pool.model, messages=HELLO, max_tokens=2, stream=True) as stream,
    ):
        headers = stream.response.headers
        assert list(stream)
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["x-penstock-replica"] in pool.replicas
    assert len(headers["x-request-id"]) >= 16, "one is made where the client sent none"


def test_requests_go_to_both_replicas(pool: LivePool) -> None:
    with pool.client() as client:
        taken = {
            client.chat.completions.with_raw_response.create(
                model=pool.model, messages=HELLO, max_tokens=1
            ).headers["x-penstock-replica"]
            for _ in range(4)
        }
    assert taken == {"r0", "r1"}


def test_models_are_listed(pool: LivePool) -> None:
    with pool.client() as client:
        assert [model.id for model in client.models.list()] == [pool.model]
        assert client.models.retrieve(pool.model).object == "model"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("no-such-model")
