"""Two routers on the same replicas, which do not know each other."""

import asyncio

import httpx2
import openai
import pytest
from live.pool import LivePool
from openai.types.chat import ChatCompletionUserMessageParam
from patience import until

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello"}]


@pytest.fixture
def pool(shared_pool: LivePool) -> LivePool:
    shared_pool.restore()
    shared_pool.start_router("second")
    return shared_pool


async def answer(client: openai.AsyncOpenAI, pool: LivePool, tokens: int) -> tuple[str, int]:
    """The replica that answered, and the number of words."""
    chunks = await client.chat.completions.create(
        model=pool.model, messages=HELLO, max_tokens=tokens, stream=True, extra_body={"ignore_eos": True}
    )
    words = sum([bool(chunk.choices and chunk.choices[0].delta.content) async for chunk in chunks])
    return chunks.response.headers["x-penstock-replica"], words


async def test_two_routers_serve_concurrently_and_each_client_gets_its_answer(pool: LivePool) -> None:
    async with pool.async_client() as one, pool.async_client("second") as other:
        seen = await asyncio.gather(
            *(answer(client, pool, tokens) for tokens in range(1, 21) for client in (one, other))
        )
    assert [words for _, words in seen] == [tokens for tokens in range(1, 21) for _ in range(2)]
    assert {replica for replica, _ in seen} == {"r0", "r1"}


async def test_one_router_crashes_and_streams_of_the_other_continue(pool: LivePool) -> None:
    async with pool.async_client() as one, pool.async_client("second") as other:
        doomed = [asyncio.create_task(answer(one, pool, 4000)) for _ in range(4)]
        going_on = [asyncio.create_task(answer(other, pool, 150)) for _ in range(4)]
        await asyncio.to_thread(until, lambda: pool.running() == 8, "all of them at the engines")
        pool.kill("router", "main")
        assert [words for _, words in await asyncio.gather(*going_on)] == [150] * 4
        for error in await asyncio.gather(*doomed, return_exceptions=True):
            assert isinstance(error, openai.APIError | httpx2.HTTPError)
    await asyncio.to_thread(until, lambda: pool.running() == 0, "what the dead router carried was cancelled")
