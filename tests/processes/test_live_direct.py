"""Answers that the router reads at real engines, while clients leave and processes die."""

import asyncio
from typing import Any

import pytest
from live.open_pool import OpenPool
from live.pool import Kind, LivePool
from live.streams import begun, same_answer, whole_answer
from openai.types.chat import ChatCompletionUserMessageParam
from patience import until

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello"}]
ENDLESS: dict[str, Any] = {"max_tokens": 8000, "extra_body": {"ignore_eos": True}}
TOKENS = 100
RUNNING = "vllm:num_requests_running"
REQUESTS = "penstock_router_requests_total"


@pytest.fixture(scope="module")
def open_direct(open_module_pool: OpenPool) -> LivePool:
    return open_module_pool(2, engine={"answerPath": "direct"})


@pytest.fixture
def direct(open_direct: LivePool) -> LivePool:
    """Two idle replicas whose answers do not pass through their sidecars."""
    open_direct.restore()
    return open_direct


def test_streams_and_whole_answers_are_served_and_counted(direct: LivePool) -> None:
    with direct.client() as client:
        stream = client.chat.completions.create(
            model=direct.model, messages=HELLO, max_tokens=5, stream=True, extra_body={"ignore_eos": True}
        )
        assert sum(bool(chunk.choices[0].delta.content) for chunk in stream) == 5
        reply = client.chat.completions.create(
            model=direct.model, messages=HELLO, max_tokens=7, extra_body={"ignore_eos": True}
        )
        assert reply.usage is not None and reply.usage.completion_tokens == 7
    until(lambda: direct.router_value("penstock_router_tpot_seconds_count") == 2, "both are counted")


async def test_no_answer_passes_through_a_sidecar(direct: LivePool) -> None:
    """While the sidecar is frozen, the stream continues to its last token."""
    async with direct.async_client() as client:
        stream = await begun(client, direct, 1, TOKENS)
        with direct.frozen("sidecar", stream.replica):
            while stream.text.count(" ") < TOKENS - 1:
                stream.take(await anext(stream.chunks))
        await stream.rest()


def test_a_disconnected_client_ends_its_work_at_the_engine(direct: LivePool) -> None:
    with direct.client() as client:
        stream = client.chat.completions.create(model=direct.model, messages=HELLO, stream=True, **ENDLESS)
        next(stream)
        assert direct.running() == 1
        stream.close()
    until(lambda: direct.running() == 0, "the engine has dropped the request")
    assert direct.engines_value("vllm:kv_cache_usage_perc") == 0


@pytest.mark.parametrize("kind", ["sidecar", "engine"])
async def test_begun_streams_continue_on_another_replica_token_for_token(
    direct: LivePool, kind: Kind
) -> None:
    async with direct.async_client() as client:
        numbers = range(4)
        wholes = await asyncio.gather(*(whole_answer(client, direct, number, TOKENS) for number in numbers))
        streams = await asyncio.gather(*(begun(client, direct, number, TOKENS) for number in numbers))
        direct.kill(kind, "r0")
        ended = await asyncio.gather(*(stream.rest() for stream in streams))
    assert [one.replica for one in ended].count("r0") == 2
    for whole, one in zip(wholes, ended, strict=True):
        same_answer(whole, one)


async def test_a_replica_that_stops_finishes_the_requests_that_its_engine_has_started(
    direct: LivePool,
) -> None:
    async with direct.async_client() as client:
        whole = await whole_answer(client, direct, 1, TOKENS)
        stream = await begun(client, direct, 1, TOKENS)
        stopping = direct.ask_to_stop("sidecar", stream.replica)
        same_answer(whole, await stream.rest())
        await asyncio.to_thread(until, lambda: not stopping.alive, "the sidecar has ended")
