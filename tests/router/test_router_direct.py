"""Answers that a router reads at engines, with tickets: what engine, sidecar and client see of them."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import orjson
import pytest
from patience import eventually
from penstock_proto import replica_pb2 as wire
from penstock_router.direct.engine_access import EngineAccess
from penstock_routing.request.engine_body import body_with
from scripted.replica import DONE, Part, ScriptedReplica, chat_answer, chat_chunk
from scripted.router import MODEL, RunningRouter, pool_with, running_router
from scripted.simulated import events_of

from tests.sidecar.conftest import Engine, Exchange

FIELDS = b'{"seed":7,"penstock_ticket":"t"}'
DIRECT = {"engine": {"type": "simulated", "timeModel": "llama-3-8b-a100", "answerPath": "direct"}}
HI: list[Any] = [{"role": "user", "content": "hi"}]
FINISHED = chat_chunk("lo").replace(b'"finish_reason":null', b'"finish_reason":"stop"')
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 20, "ignore_eos": True, "stream": True}


async def decides(part: Part) -> None:
    """Gives a ticket, and figures once the answer is whole."""
    part.admit(FIELDS)
    answer = await part.end()
    if answer.state == wire.ANSWER_STATE_WHOLE:
        part.finish(answer.prompt_tokens, answer.completion_tokens or answer.tokens)


async def relays(part: Part) -> None:
    """Gives a ticket, and serves the request itself where the router cannot use it."""
    part.admit(FIELDS if part.submit.direct else b"")
    if part.submit.direct:
        assert (await part.end()).state == wire.ANSWER_STATE_UNREACHABLE
    part.output(chat_chunk("relayed"))
    part.output(DONE, tokens=0)
    part.finish()


async def streams(exchange: Exchange) -> None:
    """Answers a chat in two tokens."""
    await exchange.begin()
    for piece in (chat_chunk("hel"), chat_chunk("lo"), DONE):
        await exchange.send(piece)
    await exchange.end()


async def hangs(exchange: Exchange) -> None:
    """Streams one token, and no more."""
    await exchange.begin()
    await exchange.send(chat_chunk("hel"))
    await asyncio.Event().wait()


@asynccontextmanager
async def pool(
    count: int = 1, **spec: Any
) -> AsyncIterator[tuple[RunningRouter, list[ScriptedReplica], list[Engine]]]:
    """A router, sidecars that give tickets, and their engines, which stream two tokens."""
    engines, replicas = [Engine() for _ in range(count)], list[ScriptedReplica]()
    for number, engine in enumerate(engines):
        engine.script = streams
        await engine.start()
        replica = ScriptedReplica(f"r{number}", decides)
        replica.engine_port = engine.port
        replicas.append(replica)
    try:
        async with running_router(*replicas, pool=pool_with(**(DIRECT | spec))) as router:
            yield router, replicas, engines
            router.app.close()
    finally:
        for engine in engines:
            await engine.kill()


async def words(router: RunningRouter) -> list[str | None]:
    stream = await router.openai.chat.completions.create(model=MODEL, messages=HI, stream=True)
    return [chunk.choices[0].delta.content async for chunk in stream]


async def reported(replica: ScriptedReplica, *states: int) -> None:
    """Wait for the router's reports about the answer to the replica's first request: these, and no others."""
    (part,) = replica.parts
    await eventually(lambda: len(part.reported) >= len(states), "a report of the answer's state")
    assert [answer.state for answer in part.reported] == [*states]


async def test_a_stream_comes_from_the_engine_and_its_figures_from_the_sidecar() -> None:
    async with pool() as (router, (replica,), _):
        assert await words(router) == ["hel", "lo"]
        await router.counted(
            'penstock_router_requests_total{ending="answered",reason="",tier="chat",verdict="admitted"}'
        )
        (part,) = replica.parts
        assert part.submit.direct
        await reported(replica, wire.ANSWER_STATE_BEGUN, wire.ANSWER_STATE_WHOLE)
        assert part.reported[-1].tokens == 2
        assert not part.cancelled.is_set()


async def test_the_engine_gets_the_client_s_body_with_the_sidecar_s_fields() -> None:
    async with pool() as (router, _, (engine,)):
        reply = await router.chat({"x-request-id": "mine"}, stream=True, vllm_xargs={"seed": 1}, odd=[1.5])
        assert reply.content == chat_chunk("hel") + chat_chunk("lo") + DONE
        assert (reply.headers["x-penstock-replica"], reply.headers["x-penstock-verdict"]) == (
            "r0",
            "admitted",
        )
        (exchange,) = engine.exchanges
        assert (exchange.path, exchange.headers["x-request-id"]) == ("/v1/chat/completions", "mine")
        assert exchange.body["vllm_xargs"] == {"seed": 7, "penstock_ticket": "t"}
        assert exchange.body["odd"] == [1.5]


async def test_a_whole_answer_comes_from_the_engine_too() -> None:
    async def answers(exchange: Exchange) -> None:
        await exchange.begin(content_type="application/json")
        usage = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
        await exchange.send(orjson.dumps(orjson.loads(chat_answer("hello")) | {"usage": usage}))
        await exchange.end()

    async with pool() as (router, (replica,), (engine,)):
        engine.script = answers
        reply = await router.openai.chat.completions.create(model=MODEL, messages=HI)
        assert reply.choices[0].message.content == "hello"
        (last,) = replica.parts[0].reported
        assert (
            last.state,
            last.prompt_tokens,
            last.completion_tokens,
            last.cached_tokens,
        ) == (
            wire.ANSWER_STATE_WHOLE,
            5,
            3,
            2,
        )


async def test_a_connection_serves_one_request_after_another() -> None:
    async with pool() as (router, _, (engine,)):
        for _ in range(3):
            await words(router)
        assert len(engine.exchanges) == 3 and len(engine._writers) == 1


@pytest.mark.parametrize("spec", [{}, {"engine": {**DIRECT["engine"], "answerPath": "sidecar"}}])
async def test_without_an_engine_port_or_the_pools_setting_answers_pass_the_sidecar(
    spec: dict[str, Any],
) -> None:
    replica = ScriptedReplica("r0")
    replica.engine_port = 4711 if spec else 0
    async with running_router(replica, pool=pool_with(**(DIRECT | spec))) as router:
        assert await words(router) == ["hel", "lo"]
    assert not replica.parts[0].submit.direct


@pytest.mark.parametrize("status", [429, 503])
async def test_an_engine_without_room_is_a_hop(status: int) -> None:
    async def is_full(exchange: Exchange) -> None:
        await exchange.begin(status, "application/json")
        await exchange.end()

    async with pool(2) as (router, replicas, engines):
        engines[0].script = is_full
        reply = await router.chat(stream=True)
        assert (reply.headers["x-penstock-replica"], reply.headers["x-penstock-hops"]) == ("r1", "2")
        await reported(replicas[0], wire.ANSWER_STATE_FULL)


async def test_an_engine_s_refusal_is_the_answer() -> None:
    async def refuses(exchange: Exchange) -> None:
        await exchange.begin(400, "application/json")
        await exchange.send(b'{"error":{"message":"no such thing"}}')
        await exchange.end()

    async with pool() as (router, (replica,), (engine,)):
        engine.script = refuses
        reply = await router.chat(stream=True)
        assert (reply.status_code, reply.json()["error"]["message"]) == (400, "no such thing")
        assert (await replica.parts[0].end()).state == wire.ANSWER_STATE_REFUSED


async def test_an_answer_of_another_kind_than_requested_is_an_error() -> None:
    async def refuses(exchange: Exchange) -> None:
        await exchange.begin(200, "application/json")
        await exchange.send(b'{"error":{"message":"no such thing"}}')
        await exchange.end()

    async with pool() as (router, (replica,), (engine,)):
        for stream, script, message in (
            (True, refuses, "no such thing"),
            (False, refuses, "no such thing"),
            (False, streams, "the engine failed to serve this request"),
        ):
            engine.script = script
            reply = await router.chat(stream=stream)
            assert (reply.status_code, reply.json()["error"]["message"]) == (502, message)
            assert (await replica.parts[-1].end()).state == wire.ANSWER_STATE_REFUSED


async def test_an_engine_lost_before_its_answer_is_a_failover() -> None:
    async def dies(exchange: Exchange) -> None:
        exchange.die()

    async with pool(2) as (router, replicas, engines):
        engines[0].script = dies
        reply = await router.chat(stream=True)
        assert reply.headers["x-penstock-replica"] == "r1"
        assert (await replicas[0].parts[0].end()).state == wire.ANSWER_STATE_LOST


async def test_a_stream_whose_engine_is_lost_continues_at_another_engine() -> None:
    def simulates(name: str, most: int | None = None) -> Any:
        async def script(exchange: Exchange) -> None:
            chat = exchange.path.endswith("chat/completions")
            endpoint = wire.ENDPOINT_CHAT_COMPLETIONS if chat else wire.ENDPOINT_COMPLETIONS
            await exchange.begin()
            pieces = events_of(endpoint, exchange.raw, engine=name)
            for piece in pieces[:most]:
                await exchange.send(piece)
            if most is not None:
                exchange.die()
            await exchange.end()

        return script

    async with pool(2) as (router, replicas, engines):
        engines[0].script, engines[1].script = simulates("e0"), simulates("e1")
        whole = await router.chat(**GREEDY)
    async with pool(2) as (router, replicas, engines):
        engines[0].script, engines[1].script = simulates("e0", most=7), simulates("e1")
        moved = await router.chat(**GREEDY)
        assert await router.metric('penstock_router_moves_total{cause="engine_lost",outcome="moved"}') == 1
        assert replicas[1].parts[0].submit.direct
    assert _text(moved.content) == _text(whole.content)


def _text(stream: bytes) -> str:
    events = [event for event in stream.split(b"\n\n") if event and not event.endswith(b"[DONE]")]
    choices = [choice for event in events for choice in orjson.loads(event[6:])["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)


@pytest.mark.parametrize("last", [chat_chunk("lo"), FINISHED], ids=["cut short", "finished"])
async def test_a_stream_without_its_last_event_is_complete_only_with_a_finish_reason(last: bytes) -> None:
    async def stops(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(chat_chunk("hel"))
        await exchange.send(last)
        await exchange.end()

    async with pool(routing={"maxMoves": 0}) as (router, (replica,), (engine,)):
        engine.script = stops
        reply = await router.chat(stream=True)
        whole = last == FINISHED
        assert reply.content.endswith(DONE) is whole
        expected = wire.ANSWER_STATE_WHOLE if whole else wire.ANSWER_STATE_LOST
        assert (await replica.parts[0].end()).state == expected


async def test_a_disconnected_client_ends_its_request_at_engine_and_sidecar() -> None:
    async with pool() as (router, (replica,), (engine,)):
        engine.script = hangs
        async with router.http.stream("POST", "/v1/chat/completions", json=_body()) as reply:
            async for _ in reply.aiter_bytes():
                break
        exchange = await engine.asked()
        async with asyncio.timeout(10):
            await exchange.closed.wait()
            await replica.parts[0].cancelled.wait()


def _body() -> dict[str, Any]:
    return {"model": MODEL, "messages": HI, "stream": True}


async def test_a_request_that_the_sidecar_ends_is_ended_at_the_engine() -> None:
    async def gives_up(part: Part) -> None:
        part.admit(FIELDS)
        await eventually(lambda: bool(part.reported))
        part.fail(wire.FAILURE_ENGINE_LOST, 502)

    async with pool(routing={"maxMoves": 0}) as (router, (replica,), (engine,)):
        replica.script, engine.script = gives_up, hangs
        reply = await router.chat(stream=True)
        assert reply.content.startswith(chat_chunk("hel")) and b'"error"' in reply.content
        async with asyncio.timeout(10):
            await engine.exchanges[0].closed.wait()


async def test_a_lost_sidecar_ends_its_requests_at_the_engine() -> None:
    async with pool(routing={"maxMoves": 0}) as (router, (replica,), (engine,)):
        engine.script = hangs
        reading = asyncio.create_task(router.chat(stream=True))
        await eventually(lambda: bool(replica.parts) and bool(replica.parts[0].reported))
        await replica.die()
        assert b'"error"' in (await reading).content
        async with asyncio.timeout(10):
            await engine.exchanges[0].closed.wait()


async def test_an_engine_that_cannot_be_reached_is_left_to_its_sidecar_for_a_while() -> None:
    async with pool() as (router, (replica,), (engine,)):
        replica.script = relays
        await engine.kill()
        assert await words(router) == ["relayed"]
        assert await words(router) == ["relayed"]
        assert [part.submit.direct for part in replica.parts] == [True, False]


@pytest.mark.parametrize("status", [401, 403])
async def test_an_engine_that_refuses_the_router_is_left_to_its_sidecar(status: int) -> None:
    async def demands_a_key(exchange: Exchange) -> None:
        await exchange.begin(status, "application/json")
        await exchange.end()

    async with pool() as (router, (replica,), (engine,)):
        replica.script, engine.script = relays, demands_a_key
        assert await words(router) == ["relayed"]
        await reported(replica, wire.ANSWER_STATE_UNREACHABLE)


async def test_an_engine_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_router.direct.engine_access.RETRY_S", 0.0)
    async with pool() as (router, (replica,), (engine,)):
        replica.script = relays
        await engine.kill()
        await words(router)
        replica.script = decides
        await engine.start()
        assert await words(router) == ["hel", "lo"]


async def test_the_end_of_thinking_is_reported_to_the_sidecar() -> None:
    async def thinks(exchange: Exchange) -> None:
        await exchange.begin()
        thought = chat_chunk("").replace(b'"content":""', b'"reasoning":"hm"')
        for piece in (thought, thought, chat_chunk("so"), DONE):
            await exchange.send(piece)
        await exchange.end()

    async with pool() as (router, (replica,), (engine,)):
        engine.script = thinks
        await router.chat(stream=True)
        await replica.parts[0].end()
        assert [answer.thinking_tokens for answer in replica.parts[0].reported] == [0, 2, 0]


async def test_the_engine_s_key_is_sent() -> None:
    async with pool() as (router, _, (engine,)):
        access = EngineAccess(router.replica_set, "secret")
        link = router.replica_set.links[0]
        assert access.reaches(link) and link.description.engine_endpoint is not None
        async with access.engine(link.description.engine_endpoint, tls=False).post(
            "/v1/completions", b"{}", "r"
        ) as answer:
            assert answer.status == 200
        assert engine.exchanges[0].headers["authorization"] == "Bearer secret"
        access.close()


async def test_an_engine_under_tls_is_reached_only_by_a_router_that_can_verify_it() -> None:
    replica = ScriptedReplica("r0")
    replica.engine_tls_port = 4711
    async with running_router(replica, pool=pool_with(**DIRECT)) as router:
        link = router.replica_set.links[0]
        assert link.description.engine_endpoint == "127.0.0.1:4711"
        assert not EngineAccess(router.replica_set, "").reaches(link)
        assert EngineAccess(router.replica_set, "", ssl.create_default_context).reaches(link)
        assert await words(router) == ["hel", "lo"]
    assert not replica.parts[0].submit.direct


async def test_engines_of_removed_replicas_are_forgotten() -> None:
    async with pool() as (router, _, _):
        access = EngineAccess(router.replica_set, "")
        gone = access.engine("10.0.0.1:8000", tls=False)
        assert access.engine("10.0.0.1:8000", tls=False) is gone
        access.engine(router.replica_set.links[0].description.engine_endpoint or "", tls=False)
        assert access.engine("10.0.0.1:8000", tls=False) is not gone


@pytest.mark.parametrize(
    "body", [b'{"a":1}', b' {"a":1} \n', b'{"a":1,"vllm_xargs":{"penstock_ticket":"x"}}']
)
def test_the_last_of_two_equal_names_counts(body: bytes) -> None:
    assert orjson.loads(body_with(body, FIELDS)) == {"a": 1, "vllm_xargs": orjson.loads(FIELDS)}


async def test_the_official_client_sees_no_difference() -> None:
    def read(client: openai.OpenAI) -> list[str | None]:
        with client, client.chat.completions.create(model=MODEL, messages=HI, stream=True) as stream:
            return [chunk.choices[0].delta.content for chunk in stream]

    async with pool() as (router, _, _):
        assert await asyncio.to_thread(read, router.sync_openai()) == ["hel", "lo"]
