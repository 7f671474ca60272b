"""A client that disconnects in any way cancels its work on the engine."""

import socket
import struct
from typing import Any

import openai
import pytest
from live.pool import LivePool
from live.raw_http import chat, post
from openai.types.chat import ChatCompletionUserMessageParam
from patience import until

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello"}]
ENDLESS: dict[str, Any] = {"max_tokens": 8000, "extra_body": {"ignore_eos": True}}
"""A minute and more at a GPU's pace: whoever sees its engine idle again has seen a cancel."""


def assert_let_go(pool: LivePool) -> None:
    until(lambda: pool.running() == 0, "the engine has dropped the request")
    assert pool.engines_value("vllm:kv_cache_usage_perc") == 0


def test_a_stream_closed_by_the_client_is_cancelled(pool: LivePool) -> None:
    with pool.client() as client:
        stream = client.chat.completions.create(model=pool.model, messages=HELLO, stream=True, **ENDLESS)
        next(stream)
        assert pool.running() == 1
        assert pool.engines_value("vllm:kv_cache_usage_perc") > 0
        stream.close()
        assert_let_go(pool)


async def test_a_stream_closed_by_the_async_client_is_cancelled(pool: LivePool) -> None:
    async with pool.async_client() as client:
        stream = await client.chat.completions.create(
            model=pool.model, messages=HELLO, stream=True, **ENDLESS
        )
        await anext(stream)
        await stream.close()
        assert_let_go(pool)


def test_a_whole_answer_is_cancelled_when_its_client_disconnects(pool: LivePool) -> None:
    with pool.client(timeout=0.5) as client, pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model=pool.model, messages=HELLO, **ENDLESS)
    assert_let_go(pool)


def test_a_reset_connection_cancels_its_request(pool: LivePool) -> None:
    body = chat(stream=True, max_tokens=8000, ignore_eos=True)
    with socket.create_connection(pool.address("router", "main")) as sock:
        sock.sendall(post("/v1/chat/completions", body))
        assert sock.recv(16)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert_let_go(pool)


def test_many_cancels_at_once_leave_no_request(pool: LivePool) -> None:
    with pool.client() as client:
        streams = [
            client.chat.completions.create(model=pool.model, messages=HELLO, stream=True, **ENDLESS)
            for _ in range(20)
        ]
        assert pool.running() == 20
        for stream in streams[:10]:
            stream.close()
        until(lambda: pool.running() == 10, "half of them dropped, the others not")
        assert next(streams[15]).choices
        for stream in streams[10:]:
            stream.close()
    assert_let_go(pool)


def test_the_end_of_a_stream_is_not_a_cancel(pool: LivePool) -> None:
    """The official client closes its connection right after the last event."""
    before = pool.engines_value("vllm:request_success_total")
    with pool.client() as client:
        assert list(
            client.chat.completions.create(
                model=pool.model,
                messages=HELLO,
                stream=True,
                max_tokens=3,
                extra_body={"ignore_eos": True},
            )
        )
    until(
        lambda: pool.engines_value("vllm:request_success_total") == before + 1,
        "the engine counts it as finished",
    )
