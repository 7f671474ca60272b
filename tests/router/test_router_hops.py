"""Requests that are rejected, lost or returned."""

import asyncio

import orjson
import pytest
from openai import APIError
from openai.types.chat import ChatCompletionUserMessageParam
from patience import eventually
from penstock_proto import replica_pb2 as wire
from penstock_routing.replicas.link_state import LinkState
from scripted.replica import (
    Part,
    ScriptedReplica,
    answers,
    chat_chunk,
    exceeds_verdict_timeout,
    is_busy,
    is_silent,
    serves_as_backup,
)
from scripted.router import MODEL, pool_with, running_router

HI: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hi"}]


def hops_of(replica: ScriptedReplica) -> list[int]:
    return [part.submit.hop for part in replica.parts]


async def test_a_rejected_request_goes_to_the_next_replica() -> None:
    r0, r1 = ScriptedReplica("r0", is_busy), ScriptedReplica("r1")
    async with running_router(r0, r1) as router:
        reply = await router.chat(stream=True)
    assert reply.status_code == 200
    assert (reply.headers["x-penstock-replica"], reply.headers["x-penstock-hops"]) == ("r1", "2")
    assert (hops_of(r0), hops_of(r1)) == ([1], [2])


async def test_a_replica_too_busy_to_describe_itself_keeps_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock_routing.replicas.replica_link.DESCRIBE_INTERVAL_S", 0.01)
    replica = ScriptedReplica("r0")
    replica.describes_once = True
    async with running_router(replica) as router:
        await eventually(lambda: replica.described > 3)
        assert (await router.chat()).status_code == 200
        assert replica.sessions == 1


async def test_requests_are_answered_429_when_no_replica_has_capacity() -> None:
    async def rejects(part: Part, earliest_s: float) -> None:
        part.reject(wire.REASON_DECODE_BUDGET, earliest_s)

    r0 = ScriptedReplica("r0", lambda part: rejects(part, 7.2))
    r1 = ScriptedReplica("r1", lambda part: rejects(part, 2.4))
    async with running_router(r0, r1) as router:
        reply = await router.chat({"x-request-id": "mine"})
    assert reply.status_code == 429
    assert reply.headers["retry-after"] == "3"
    assert reply.headers["x-request-id"] == "mine"
    assert "x-should-retry" not in reply.headers
    error = reply.json()["error"]
    assert error["type"] == error["code"] == "slo_unattainable"
    assert error["message"] == (
        "tier 'chat' cannot start this request in time on any of 2 replicas; try again in 3 s"
    )


async def test_a_request_that_no_replica_can_ever_serve_is_answered_429_without_retry() -> None:
    async def never(part: Part) -> None:
        part.reject(wire.REASON_NEVER)

    async with running_router(ScriptedReplica("r0", never), ScriptedReplica("r1", never)) as router:
        reply = await router.chat()
    assert reply.status_code == 429
    assert reply.headers["x-should-retry"] == "false"
    assert "retry-after" not in reply.headers


async def test_a_request_makes_at_most_the_pools_hops() -> None:
    replicas = [ScriptedReplica(f"r{n}", is_busy) for n in range(4)]
    async with running_router(
        *replicas, pool=pool_with(routing={"backup": "reject", "maxHops": 2})
    ) as router:
        reply = await router.chat()
    assert reply.status_code == 429
    assert [len(replica.parts) for replica in replicas] == [1, 1, 0, 0]


async def test_the_backup_serves_best_effort_where_there_is_least_of_it() -> None:
    r0, r1 = ScriptedReplica("r0", serves_as_backup), ScriptedReplica("r1", serves_as_backup)
    r0.snapshot = wire.Snapshot(engine_ready=True, best_effort=5)
    async with running_router(r0, r1, pool=pool_with(routing={"backup": "best-effort"})) as router:
        reply = await router.chat()
    assert reply.status_code == 200
    assert reply.headers["x-penstock-verdict"] == "best-effort"
    assert reply.headers["x-penstock-replica"] == "r1"
    assert [part.submit.backup for part in (*r0.parts, *r1.parts)] == [False, False, True]


async def test_a_best_effort_tier_has_no_backup() -> None:
    replica = ScriptedReplica("r0", is_busy)
    async with running_router(replica, pool=pool_with(routing={"backup": "best-effort"})) as router:
        reply = await router.chat({"x-penstock-tier": "batch"})
    assert reply.status_code == 429
    assert len(replica.parts) == 1


async def test_the_answer_is_503_when_no_replica_is_in_service() -> None:
    replica = ScriptedReplica("r0")
    async with running_router(replica) as router:
        replica.send_snapshot(engine_ready=False)
        await router.all_in(LinkState.ENGINE_DOWN)
        reply = await router.chat()
        ready = await router.http.get("/ready")
    assert (reply.status_code, reply.json()["error"]["type"]) == (503, "no_replicas")
    assert reply.headers["retry-after"] == "1"
    assert ready.status_code == 503
    assert "r0 engine_down" in ready.json()["error"]["message"]


async def test_a_draining_replica_is_passed_over() -> None:
    r0, r1 = ScriptedReplica("r0"), ScriptedReplica("r1")
    async with running_router(r0, r1) as router:
        r0.send_snapshot(draining=True)
        await eventually(lambda: router.replica_set["r0"].state is LinkState.DRAINING)
        replies = [await router.chat() for _ in range(3)]
    assert [reply.headers["x-penstock-replica"] for reply in replies] == ["r1"] * 3


@pytest.mark.parametrize("stream", [True, False])
async def test_a_replica_lost_before_the_first_byte_costs_a_failover(stream: bool) -> None:
    async def admits_and_dies(part: Part) -> None:
        part.admit()
        await eventually(lambda: router.replica_set["r0"].load.sent == 0)  # the verdict has come
        asyncio.get_running_loop().create_task(r0.die())

    r0, r1 = ScriptedReplica("r0", admits_and_dies), ScriptedReplica("r1")
    async with running_router(r0, r1) as router:
        reply = await router.chat(stream=stream)
        assert reply.status_code == 200
        assert (reply.headers["x-penstock-replica"], reply.headers["x-penstock-hops"]) == ("r1", "1")
        await router.counted('penstock_router_failovers_total{tier="chat"}')


async def test_an_engine_lost_before_the_first_byte_costs_a_failover() -> None:
    async def loses_its_engine(part: Part) -> None:
        part.admit()
        part.fail(wire.FAILURE_ENGINE_LOST, 502)

    async with running_router(ScriptedReplica("r0", loses_its_engine), ScriptedReplica("r1")) as router:
        reply = await router.chat(stream=True)
    assert (reply.status_code, reply.headers["x-penstock-replica"]) == (200, "r1")


async def test_a_silent_replica_costs_a_failover_and_gets_a_cancel() -> None:
    r0, r1 = ScriptedReplica("r0", exceeds_verdict_timeout), ScriptedReplica("r1")
    async with running_router(r0, r1) as router:
        reply = await router.chat()
        assert reply.headers["x-penstock-replica"] == "r1"
        await r0.parts[0].cancelled.wait()


async def test_a_replica_lost_in_a_stream_ends_it_with_an_error_event() -> None:
    async def begins_and_dies(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("one"))
        await seen.wait()
        asyncio.get_running_loop().create_task(r0.die())

    seen = asyncio.Event()
    r0 = ScriptedReplica("r0", begins_and_dies)
    async with running_router(r0) as router:
        stream = await router.openai.chat.completions.create(model=MODEL, messages=HI, stream=True)
        words = []
        with pytest.raises(APIError, match="replica r0 was lost while it answered"):
            async for chunk in stream:
                words.append(chunk.choices[0].delta.content)
                seen.set()
    assert words == ["one"]


@pytest.mark.parametrize(
    ("talks", "status", "kind"), [(True, 429, "slo_unattainable"), (False, 503, "no_replicas")]
)
async def test_a_replica_too_busy_to_answer_is_not_lost(talks: bool, status: int, kind: str) -> None:
    async def is_too_busy(part: Part) -> None:
        replica.send_snapshot(running=1)
        await eventually(lambda: router.replica_set["r0"].load.snapshot.running == 1)
        await exceeds_verdict_timeout(part)

    replica = ScriptedReplica("r0", is_too_busy if talks else exceeds_verdict_timeout)
    async with running_router(replica) as router:
        reply = await router.chat()
    assert (reply.status_code, reply.json()["error"]["type"]) == (status, kind)


async def test_an_engine_lost_in_a_stream_is_its_last_event() -> None:
    async def loses_its_engine(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("one"))
        await seen.wait()
        part.fail(wire.FAILURE_ENGINE_LOST, 502, b'{\n"error": {"message": "engine lost"}}')

    seen, text = asyncio.Event(), ""
    body = {"model": MODEL, "messages": HI, "stream": True}
    async with (
        running_router(ScriptedReplica("r0", loses_its_engine)) as router,
        router.http.stream("POST", "/v1/chat/completions", json=body) as reply,
    ):
        async for piece in reply.aiter_text():
            text += piece
            seen.set()
    *_, last, end = text.split("\n\n")
    assert (end, orjson.loads(last.removeprefix("data: "))["error"]["code"]) == ("", "engine_lost")


@pytest.mark.parametrize(
    ("failure", "status", "body", "answered", "message"),
    [
        (wire.FAILURE_BAD_REQUEST, 400, b'{"error":{"message":"bad n","param":"n"}}', 400, "bad n"),
        (wire.FAILURE_ENGINE_REFUSED, 422, b'{"error":{"message":"no"}}', 422, "no"),
        (wire.FAILURE_INTERNAL, 500, b"Traceback: secret", 500, "the engine failed to serve this request"),
        (wire.FAILURE_ENGINE_REFUSED, 0, b"", 502, "the engine failed to serve this request"),
    ],
)
async def test_an_engines_own_error_is_forwarded(
    failure: "wire.Failure.ValueType", status: int, body: bytes, answered: int, message: str
) -> None:
    async def refuses(part: Part) -> None:
        part.admit()
        part.fail(failure, status, body)

    r0, r1 = ScriptedReplica("r0", refuses), ScriptedReplica("r1")
    async with running_router(r0, r1) as router:
        reply = await router.chat({"x-request-id": "mine"})
    assert (reply.status_code, reply.json()["error"]["message"]) == (answered, message)
    assert reply.headers["x-request-id"] == "mine"
    assert r1.parts == []


async def test_a_replica_that_comes_back_receives_requests_again() -> None:
    replica = ScriptedReplica("r0")
    pool = pool_with(routing={"moveTimeout": "1ms"})
    async with running_router(replica, pool=pool) as router:
        await replica.die()
        await router.all_in(LinkState.LOST)
        assert (await router.chat()).status_code == 503
        await replica.start()
        await router.all_in(LinkState.READY)
        assert (await router.chat()).status_code == 200
    assert replica.sessions == 2


async def never_ends(part: Part) -> None:
    part.admit()
    part.output(chat_chunk("one"))


@pytest.mark.parametrize("script", [is_silent, never_ends])
async def test_a_client_that_disconnects_has_its_request_cancelled(script: object) -> None:
    replica = ScriptedReplica("r0", script)  # type: ignore[arg-type]
    async with running_router(replica) as router:
        asking = asyncio.create_task(router.chat(stream=True))
        await eventually(lambda: len(replica.parts) == 1)
        asking.cancel()
        await replica.parts[0].cancelled.wait()
        verdict = "admitted" if script is never_ends else "none"
        await router.counted(
            f'penstock_router_requests_total{{ending="client_gone",reason="",tier="chat",verdict="{verdict}"}}'
        )
        assert await router.metric("penstock_router_open_requests") == 0
        assert await router.metric('penstock_router_slo_judged_total{tier="chat"}') == 0


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    async def floods(part: Part) -> None:
        part.admit()
        while not part.cancelled.is_set():
            part.output(chat_chunk("x" * 60_000))
            await asyncio.sleep(0)

    replica = ScriptedReplica("r0", floods)
    async with running_router(replica, pool=pool_with(router={"streamBufferBytes": 100_000})) as router:
        host, port = router.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = orjson.dumps({"model": MODEL, "messages": [], "stream": True})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await eventually(lambda: len(replica.parts) == 1)
        await replica.parts[0].cancelled.wait()
        await router.counted(
            'penstock_router_requests_total{ending="client_slow",reason="",tier="chat",verdict="admitted"}'
        )
        assert await router.metric('penstock_router_slo_missed_total{tier="chat",why="client_slow"}') == 1
        writer.transport.abort()
        del reader


async def test_a_stream_cut_off_does_not_affect_the_others() -> None:
    replica = ScriptedReplica("r0", never_ends)
    async with running_router(replica) as router:
        asking = asyncio.create_task(router.chat(stream=True))
        await eventually(lambda: len(replica.parts) == 1)
        asking.cancel()
        replica.script = answers
        assert (await router.chat(stream=True)).status_code == 200


async def test_a_request_over_the_bound_is_rejected() -> None:
    replica = ScriptedReplica("r0", never_ends)
    async with running_router(replica, pool=pool_with(router={"maxInflight": 1})) as router:
        asking = asyncio.create_task(router.chat(stream=True))
        await eventually(lambda: len(replica.parts) == 1)
        reply = await router.chat()
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "router_full")
        assert reply.headers["retry-after"] == "1"
        asking.cancel()


async def test_unknown_fields_of_a_replica_are_ignored() -> None:
    async def speaks_a_later_version(part: Part) -> None:
        part.send(wire.Event())
        part.reject(wire.REASON_UNSPECIFIED)

    replica = ScriptedReplica("r0", speaks_a_later_version)
    async with running_router(replica) as router:
        reply = await router.chat()
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")


async def test_only_statuses_that_may_succeed_later_are_marked_retryable() -> None:
    never = dict.fromkeys((400, 404, 410, 426, 430, 499), "false")
    advice = {**never, **dict.fromkeys((408, 409, 425, 429, 500, 501))}
    statuses = iter(advice)

    async def refuses(part: Part) -> None:
        part.admit()
        part.fail(wire.FAILURE_ENGINE_REFUSED, next(statuses))

    async with running_router(ScriptedReplica("r0", refuses)) as router:
        replies = [await router.chat() for _ in advice]
    assert {reply.status_code: reply.headers.get("x-should-retry") for reply in replies} == advice


async def test_requests_go_to_each_replica_in_turn() -> None:
    async with running_router(*(ScriptedReplica(f"r{number}") for number in range(3))) as router:
        requested = [(await router.chat()).headers["x-penstock-replica"] for _ in range(6)]
    assert requested == ["r0", "r1", "r2"] * 2
