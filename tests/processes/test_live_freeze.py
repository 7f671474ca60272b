"""A frozen sidecar: its connections are open and it sends nothing, as if it hung or had no CPU."""

import asyncio
from dataclasses import dataclass

import openai
from live.pool import LivePool
from openai.types.chat import ChatCompletionUserMessageParam
from patience import answered

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello"}]
TOKENS = 150
EJECTED, EJECTIONS = "penstock_router_replica_ejected", "penstock_router_ejections_total"
FAILOVERS = "penstock_router_failovers_total"


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of one stream. error: the one that ended it, if any."""

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


async def one_word(client: openai.AsyncOpenAI, pool: LivePool) -> str:
    """The replica that gave a short answer."""
    raw = await client.chat.completions.with_raw_response.create(
        model=pool.model, messages=HELLO, max_tokens=1
    )
    return raw.headers["x-penstock-replica"]


async def test_a_frozen_sidecar_is_ejected_and_returns_without_affecting_others(pool: LivePool) -> None:
    pool.start_router("hasty", router={"verdictTimeout": "500ms"})
    async with pool.async_client("hasty") as client:
        begun = [asyncio.Event() for _ in range(8)]
        streams = [asyncio.create_task(stream(client, pool, one)) for one in begun]
        await asyncio.gather(*(one.wait() for one in begun))
        with pool.frozen("sidecar", "r0"):
            taken = await asyncio.gather(*(one_word(client, pool) for _ in range(6)))
            assert set(taken) == {"r1"}
            assert pool.router_value(EJECTIONS, "hasty") == pool.router_value(EJECTED, "hasty") == 1
            assert pool.router_value(FAILOVERS, "hasty") == 3
            assert {await one_word(client, pool) for _ in range(4)} == {"r1"}
            assert pool.router_value(FAILOVERS, "hasty") == 3, "nothing was sent to the frozen one"

        async def r0_answers() -> bool:
            return await one_word(client, pool) == "r0"

        await answered(r0_answers, "r0 back in service")
        assert pool.router_value(EJECTED, "hasty") == 0
        ended = await asyncio.gather(*streams)
    spared = [one for one in ended if one.replica == "r1"]
    assert len(spared) == 4
    assert all(one.error is None and one.words == TOKENS for one in spared)
    assert all(one.words == TOKENS or "lost" in str(one.error) for one in ended)
