"""kill -9 in the middle: requests continue at the other replica, streams token for token."""

import asyncio

import openai
import pytest
from live.pool import Kind, LivePool
from live.streams import Ended, begun, same_answer, whole_answer
from openai.types.chat import ChatCompletionUserMessageParam
from patience import until

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello"}]
LONG_PROMPT = list(range(1, 3001))
TOKENS = 100
RUNNING = "vllm:num_requests_running"


@pytest.mark.parametrize("kind", ["sidecar", "engine"])
async def test_begun_streams_continue_on_another_replica_token_for_token(pool: LivePool, kind: Kind) -> None:
    """Chats and completions, with usage; no token twice, none missing."""
    async with pool.async_client() as client:
        numbers = range(8)
        wholes = await asyncio.gather(*(whole_answer(client, pool, number, TOKENS) for number in numbers))
        streams = await asyncio.gather(*(begun(client, pool, number, TOKENS) for number in numbers))
        pool.kill(kind, "r0")
        ended: list[Ended] = await asyncio.gather(*(stream.rest() for stream in streams))
    assert [one.replica for one in ended].count("r0") == 4
    for whole, one in zip(wholes, ended, strict=True):
        same_answer(whole, one)
    assert pool.router_value("penstock_router_move_silence_seconds_count") >= 4


async def test_a_stream_survives_the_loss_of_two_replicas(pool: LivePool) -> None:
    """The second is lost once the first is back: a move each."""
    async with pool.async_client() as client:
        whole = await whole_answer(client, pool, 1, 3 * TOKENS)
        stream = await begun(client, pool, 1, 3 * TOKENS)
        first, second = ("r0", "r1") if stream.replica == "r0" else ("r1", "r0")
        pool.kill("engine", first)
        await asyncio.to_thread(until, lambda: pool.engine_value(second, RUNNING) == 1, "it goes on")
        await asyncio.to_thread(pool.start, "engine", first)
        await asyncio.to_thread(until, lambda: pool.ready_replicas() == {"r0", "r1"}, "both in service")
        pool.kill("sidecar", second)
        same_answer(whole, await stream.rest())


@pytest.mark.parametrize("kind", ["sidecar", "engine"])
async def test_requests_without_a_first_byte_succeed_on_another_replica(pool: LivePool, kind: Kind) -> None:
    """Prefills queue up at both replicas; one of these crashes."""

    async def ask(client: openai.AsyncOpenAI) -> str:
        raw = await client.completions.with_raw_response.create(
            model=pool.model, prompt=LONG_PROMPT, max_tokens=2, extra_body={"ignore_eos": True}
        )
        assert raw.parse().choices[0].finish_reason == "length"
        return raw.headers["x-penstock-replica"]

    failovers = pool.router_value("penstock_router_failovers_total")
    async with pool.async_client() as client:
        requested = [asyncio.create_task(ask(client)) for _ in range(24)]
        await asyncio.to_thread(until, lambda: pool.engine_value("r0", RUNNING) > 0, "work at r0")
        pool.kill(kind, "r0")
        taken = await asyncio.gather(*requested)
    assert taken.count("r1") > 12, "r1 took its own half and what r0 had not answered"
    assert pool.router_value("penstock_router_failovers_total") > failovers


@pytest.mark.parametrize("kind", ["sidecar", "engine"])
def test_a_lost_replica_returns_to_service(pool: LivePool, kind: Kind) -> None:
    pool.kill(kind, "r0")
    with pool.client() as client:
        until(lambda: pool.ready_replicas() == {"r1"}, "r0 out of service")
        assert {one_word(client, pool) for _ in range(4)} == {"r1"}
        pool.start(kind, "r0")
        until(lambda: pool.ready_replicas() == {"r0", "r1"}, "r0 back in service")
        assert {one_word(client, pool) for _ in range(4)} == {"r0", "r1"}


def test_without_replicas_requests_are_503_until_one_returns(pool: LivePool) -> None:
    pool.kill("sidecar", "r0")
    pool.kill("engine", "r1")
    until(lambda: not pool.ready_replicas(), "none in service")
    with pool.client() as client:
        with pytest.raises(openai.InternalServerError) as refusal:
            one_word(client, pool)
        assert refusal.value.status_code == 503
        assert refusal.value.code == "no_replicas"
        assert int(refusal.value.response.headers["retry-after"]) >= 1
        pool.start("sidecar", "r0")
        until(lambda: pool.ready_replicas() == {"r0"}, "r0 back in service")
        assert one_word(client, pool) == "r0"


def test_a_router_that_crashes_cancels_its_requests(pool: LivePool) -> None:
    with pool.client() as client:
        answer = client.chat.completions.create(
            model=pool.model, messages=HELLO, max_tokens=8000, stream=True, extra_body={"ignore_eos": True}
        )
        next(answer)
        assert pool.running() == 1
        pool.kill("router", "main")
        with pytest.raises(openai.APIError):
            list(answer)
    until(lambda: pool.running() == 0, "engines idle")
    pool.start("router", "main")
    until(lambda: pool.ready_replicas() == {"r0", "r1"}, "the new router has its replicas")


async def test_a_client_whose_router_is_lost_gets_its_answer_from_another_one(pool: LivePool) -> None:
    """The client sends the same request with the same id. The lost router's requests have ended."""
    pool.start_router("second")
    same_id = {"x-request-id": "once-more"}
    async with (
        pool.async_client(default_headers=same_id) as first,
        pool.async_client("second", default_headers=same_id) as then,
    ):
        whole = await whole_answer(then, pool, 1, TOKENS)
        stream = await begun(first, pool, 1, 8000)
        pool.kill("router", "main")
        with pytest.raises(openai.APIError):
            await stream.rest()
        retry = await begun(then, pool, 1, TOKENS)
        same_answer(whole, await retry.rest())
    await asyncio.to_thread(until, lambda: pool.running() == 0, "engines idle")


async def test_requests_with_one_id_do_not_disturb_each_other(pool: LivePool) -> None:
    async with pool.async_client(default_headers={"x-request-id": "twice"}) as client:
        whole = await whole_answer(client, pool, 1, TOKENS)
        streams = await asyncio.gather(*(begun(client, pool, 1, TOKENS) for _ in range(3)))
        await streams.pop().chunks.close()
        for stream in streams:
            same_answer(whole, await stream.rest())


def one_word(client: openai.OpenAI, pool: LivePool) -> str:
    """The replica that gave a short answer."""
    raw = client.chat.completions.with_raw_response.create(model=pool.model, messages=HELLO, max_tokens=1)
    return raw.headers["x-penstock-replica"]
