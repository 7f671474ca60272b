"""SIGTERM of any process under load: accepted requests finish, the exit code is 0, no request is lost."""

import asyncio
import socket
from dataclasses import dataclass

import httpx2
import openai
import pytest
from live.pool import Kind, LivePool
from live.streams import begun, same_answer, whole_answer
from openai.types.chat import ChatCompletionUserMessageParam
from patience import until

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello"}]
TOKENS = 120


@dataclass(slots=True)
class Load:
    """Streams that have begun."""

    words: list[int]
    answers: list[asyncio.Task[None]]

    async def to_the_end(self) -> list[int]:
        """Return the words that each client received; raise a client's error."""
        await asyncio.gather(*self.answers)
        return self.words


async def begin(client: openai.AsyncOpenAI, pool: LivePool, streams: int, tokens: int = TOKENS) -> Load:
    """Streams, each past its first word."""
    load = Load([0] * streams, [])
    begun = [asyncio.Event() for _ in range(streams)]

    async def one(number: int) -> None:
        chunks = await client.chat.completions.create(
            model=pool.model, messages=HELLO, max_tokens=tokens, stream=True, extra_body={"ignore_eos": True}
        )
        async for chunk in chunks:
            load.words[number] += bool(chunk.choices and chunk.choices[0].delta.content)
            begun[number].set()

    load.answers = [asyncio.create_task(one(number)) for number in range(streams)]
    await asyncio.gather(*(event.wait() for event in begun))
    return load


async def test_a_stopping_router_finishes_its_streams(pool: LivePool) -> None:
    async with pool.async_client() as client:
        load = await begin(client, pool, 12)
        router = pool.ask_to_stop("router", "main")
        assert await load.to_the_end() == [TOKENS] * 12
    assert await asyncio.to_thread(router.exit_code) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(pool.address("router", "main"))


@pytest.mark.parametrize("kind", ["sidecar", "engine"])
async def test_a_stopping_replica_finishes_its_streams_while_the_other_takes_new_requests(
    pool: LivePool, kind: Kind
) -> None:
    async with pool.async_client() as client:
        load = await begin(client, pool, 12)
        stopping = pool.ask_to_stop(kind, "r0")
        new = [
            await client.chat.completions.with_raw_response.create(
                model=pool.model, messages=HELLO, max_tokens=1
            )
            for _ in range(6)
        ]
        assert await load.to_the_end() == [TOKENS] * 12
    assert len(new) == 6
    assert await asyncio.to_thread(stopping.exit_code) == 0
    await asyncio.to_thread(until, lambda: pool.ready_replicas() == {"r1"}, "r0 out of service")


async def test_a_rolling_restart_loses_no_request(pool: LivePool) -> None:
    """Each replica in turn is stopped and started again, under steady requests."""
    done = asyncio.Event()
    served = 0

    async def steady(client: openai.AsyncOpenAI) -> None:
        nonlocal served
        while not done.is_set():
            chunks = await client.chat.completions.create(
                model=pool.model, messages=HELLO, max_tokens=10, stream=True, extra_body={"ignore_eos": True}
            )
            assert (
                sum([bool(chunk.choices and chunk.choices[0].delta.content) async for chunk in chunks]) == 10
            )
            served += 1

    async with pool.async_client() as client:
        clients = [asyncio.create_task(steady(client)) for _ in range(4)]
        for name in pool.replicas:
            await asyncio.to_thread(restart, pool, name)
        done.set()
        await asyncio.gather(*clients)
    assert served > 4


def restart(pool: LivePool, name: str) -> None:
    """As an orchestrator restarts a replica: sidecar first, so that it drains, then its engine."""
    kinds: tuple[Kind, Kind] = ("sidecar", "engine")
    for kind in kinds:
        assert pool.ask_to_stop(kind, name).exit_code() == 0
    for kind in reversed(kinds):
        pool.start(kind, name)
    until(lambda: pool.ready_replicas() == set(pool.replicas), f"{name} back in service")


def test_an_endless_stream_does_not_delay_a_routers_stop(pool: LivePool) -> None:
    """A request that is not finished in time ends with an error, and its work is cancelled."""
    pool.kill("router", "main")
    pool.start("router", "main", "--drain-s", "0.5")
    until(lambda: pool.ready_replicas() == {"r0", "r1"}, "every replica in service")
    with pool.client() as client:
        answers = [
            client.chat.completions.create(
                model=pool.model,
                messages=HELLO,
                max_tokens=8000,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            for _ in range(2)
        ]
        on_r0 = next(one for one in answers if one.response.headers["x-penstock-replica"] == "r0")
        stopping = pool.ask_to_stop("router", "main")
        with pytest.raises(openai.APIError):
            list(on_r0)
        assert stopping.exit_code() == 0
        until(lambda: pool.engine_value("r0", "vllm:num_requests_running") == 0, "cancelled on the engine")


async def test_a_drain_that_times_out_moves_streams(pool: LivePool) -> None:
    """The sidecar stops in time, its engine is idle, and clients see one answer."""
    pool.kill("sidecar", "r0")
    pool.start("sidecar", "r0", "--drain-s", "0.3")
    until(lambda: pool.ready_replicas() == {"r0", "r1"}, "every replica in service")
    async with pool.async_client() as client:
        wholes = await asyncio.gather(*(whole_answer(client, pool, number, 150) for number in range(4)))
        streams = await asyncio.gather(*(begun(client, pool, number, 150) for number in range(4)))
        stopping = pool.ask_to_stop("sidecar", "r0")
        ended = await asyncio.gather(*(stream.rest() for stream in streams))
    assert {one.replica for one in ended} == {"r0", "r1"}
    for whole, one in zip(wholes, ended, strict=True):
        same_answer(whole, one)
    assert stopping.exit_code() == 0
    until(lambda: pool.engine_value("r0", "vllm:num_requests_running") == 0, "cancelled on the engine")
    assert _moves(pool, "drained") == 2


def _moves(pool: LivePool, cause: str) -> float:
    page = httpx2.get(f"{pool.admin_url()}/metrics").text
    line = f'penstock_router_moves_total{{cause="{cause}",outcome="moved"}} '
    return next(float(one.removeprefix(line)) for one in page.splitlines() if one.startswith(line))
