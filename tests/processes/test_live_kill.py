"""kill -9 in the middle: what had no first byte is served elsewhere, begun streams end in an error."""

import asyncio
from dataclasses import dataclass

import openai
import pytest
from live.pool import Kind, LivePool
from openai.types.chat import ChatCompletionUserMessageParam
from patience import until

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello"}]
LONG_PROMPT = list(range(1, 3001))
TOKENS = 150
RUNNING = "vllm:num_requests_running"


@dataclass(frozen=True, slots=True)
class Ended:
    """How one stream went: who took it last, words received, and the error it ended with."""

    replica: str
    words: int
    error: openai.APIError | None


async def stream(client: openai.AsyncOpenAI, pool: LivePool, begun: asyncio.Event) -> Ended:
    """One streamed answer to its end, be it an error."""
    words = 0
    chunks = await client.chat.completions.create(
        model=pool.model, messages=HELLO, max_tokens=TOKENS, stream=True, extra_body={"ignore_eos": True}
    )
    replica = chunks.response.headers["x-penstock-replica"]
    try:
        async for chunk in chunks:
            words += bool(chunk.choices and chunk.choices[0].delta.content)
            begun.set()
    except openai.APIError as error:
        return Ended(replica, words, error)
    return Ended(replica, words, None)


@pytest.mark.parametrize("kind", ["sidecar", "engine"])
async def test_begun_streams_end_with_an_error_and_others_go_on(pool: LivePool, kind: Kind) -> None:
    async with pool.async_client() as client:
        begun = [asyncio.Event() for _ in range(8)]
        streams = [asyncio.create_task(stream(client, pool, one)) for one in begun]
        await asyncio.gather(*(one.wait() for one in begun))
        pool.kill(kind, "r0")
        ended = await asyncio.gather(*streams)
    hit = [one for one in ended if one.replica == "r0"]
    spared = [one for one in ended if one.replica == "r1"]
    assert len(hit) == len(spared) == 4
    assert all(one.error is not None and 0 < one.words < TOKENS for one in hit)
    assert all(one.error is None and one.words == TOKENS for one in spared)
    assert "lost" in str(hit[0].error)


@pytest.mark.parametrize("kind", ["sidecar", "engine"])
async def test_what_had_no_first_byte_succeeds_elsewhere(pool: LivePool, kind: Kind) -> None:
    """Prefills queue up at both replicas; one dies under them."""

    async def ask(client: openai.AsyncOpenAI) -> str:
        raw = await client.completions.with_raw_response.create(
            model=pool.model, prompt=LONG_PROMPT, max_tokens=2, extra_body={"ignore_eos": True}
        )
        assert raw.parse().choices[0].finish_reason == "length"
        return raw.headers["x-penstock-replica"]

    failovers = pool.router_value("penstock_router_failovers_total")
    async with pool.async_client() as client:
        asked = [asyncio.create_task(ask(client)) for _ in range(24)]
        await asyncio.to_thread(until, lambda: pool.engine_value("r0", RUNNING) > 0, "work at r0")
        pool.kill(kind, "r0")
        taken = await asyncio.gather(*asked)
    assert taken.count("r1") > 12, "r1 took its own half and what r0 had not answered"
    assert pool.router_value("penstock_router_failovers_total") > failovers


@pytest.mark.parametrize("kind", ["sidecar", "engine"])
def test_replica_comes_back_by_itself(pool: LivePool, kind: Kind) -> None:
    pool.kill(kind, "r0")
    with pool.client() as client:
        until(lambda: pool.ready_replicas() == {"r1"}, "r0 out of rotation")
        assert {one_word(client, pool) for _ in range(4)} == {"r1"}
        pool.start(kind, "r0")
        until(lambda: pool.ready_replicas() == {"r0", "r1"}, "r0 back in rotation")
        assert {one_word(client, pool) for _ in range(4)} == {"r0", "r1"}


def test_no_replica_at_all_is_503_until_one_is_back(pool: LivePool) -> None:
    pool.kill("sidecar", "r0")
    pool.kill("engine", "r1")
    until(lambda: not pool.ready_replicas(), "none in rotation")
    with pool.client() as client:
        with pytest.raises(openai.InternalServerError) as refusal:
            one_word(client, pool)
        assert refusal.value.status_code == 503
        assert refusal.value.code == "no_replicas"
        assert int(refusal.value.response.headers["retry-after"]) >= 1
        pool.start("sidecar", "r0")
        until(lambda: pool.ready_replicas() == {"r0"}, "r0 back in rotation")
        assert one_word(client, pool) == "r0"


def test_router_that_dies_cancels_what_it_carried(pool: LivePool) -> None:
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


def one_word(client: openai.OpenAI, pool: LivePool) -> str:
    """A short answer; who gave it."""
    raw = client.chat.completions.with_raw_response.create(model=pool.model, messages=HELLO, max_tokens=1)
    return raw.headers["x-penstock-replica"]
