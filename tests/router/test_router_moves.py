"""Streams whose replica is lost: the clients' view and the router's counts."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
import pytest
from patience import eventually
from penstock_pool import named_time_model
from penstock_proto import replica_pb2 as wire
from scripted.replica import DONE, Part, Script, ScriptedReplica, answers
from scripted.router import MODEL, RunningRouter, pool_with, running_router
from scripted.simulated import events_of

TOKENS = 40
BODY: dict[str, Any] = {
    "temperature": 0,
    "max_tokens": TOKENS,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}
ENGINE_ERROR = b'data: {"error":{"message":"EngineCore encountered an issue","code":500}}\n\n' + DONE
FIRST_SENT = ("id", "object", "created", "model")


def serves(replica: ScriptedReplica, *losses: str, events: int = 9) -> Script:
    """Return a script that answers as a simulated engine and loses its first requests in these ways."""
    left = list(losses)

    async def script(part: Part) -> None:
        part.admit()
        pieces = events_of(part.submit.endpoint, part.submit.body, engine=replica.name)
        if not left:
            for piece in pieces:
                part.output(piece)
            requested = orjson.loads(part.submit.body)
            prompt = requested.get("prompt")
            part.finish(len(prompt) if isinstance(prompt, list) else 5, requested["max_tokens"])
            return
        for piece in pieces[:events]:
            part.output(piece)
        await _lose(replica, part, left.pop(0))

    return script


async def _lose(replica: ScriptedReplica, part: Part, way: str) -> None:
    if way == "engine":
        part.fail(wire.FAILURE_ENGINE_LOST, 502)
    elif way == "engine stops":
        replica.send_snapshot(engine_ready=False)
        part.fail(wire.FAILURE_ENGINE_LOST, 502)
    elif way == "engine reports":
        part.output(ENGINE_ERROR, tokens=0)
        part.finish()
    elif way == "inside an event":
        part.output(b'data: {"id":"of', tokens=0)
        part.fail(wire.FAILURE_ENGINE_LOST, 502)
    else:
        if way == "drain":
            replica.send_snapshot(draining=True)
        await asyncio.sleep(0.05)  # sent events have to be in transit before the process ends
        asyncio.get_running_loop().create_task(replica.die())


def replicas_losing(*losses: tuple[str, ...], events: int = 9) -> list[ScriptedReplica]:
    replicas = [ScriptedReplica(f"r{n}") for n in range(len(losses))]
    for replica, ways in zip(replicas, losses, strict=True):
        replica.script = serves(replica, *ways, events=events)
    return replicas


def router_with(replicas: list[ScriptedReplica], **spec: Any) -> AbstractAsyncContextManager[RunningRouter]:
    return running_router(*replicas, pool=pool_with(**spec))


async def streamed(router: RunningRouter, path: str = "/v1/chat/completions", **body: Any) -> bytes:
    prompt = (
        {"prompt": "once upon"} if "chat" not in path else {"messages": [{"role": "user", "content": "hi"}]}
    )
    reply = await router.http.post(path, json={"model": MODEL, **prompt, **BODY, **body})
    assert reply.status_code == 200
    return reply.content


def chunks_of(stream: bytes) -> list[dict[str, Any]]:
    events = [event for event in stream.split(b"\n\n") if event and not event.endswith(b"[DONE]")]
    return [orjson.loads(event[6:]) for event in events]


def words_of(stream: bytes) -> list[str]:
    choices = [choice for chunk in chunks_of(stream) for choice in chunk.get("choices", ())]
    return "".join(
        one["text"] if "text" in one else one["delta"].get("content", "") for one in choices
    ).split()


@pytest.mark.parametrize("way", ["engine", "engine reports", "inside an event", "replica", "drain"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_continues_on_another_replica_token_for_token(way: str, path: str) -> None:
    async with running_router(*replicas_losing(())) as router:
        whole = await streamed(router, path)
    async with running_router(*replicas_losing((way,), ())) as router:
        moved = await streamed(router, path)
        cause = {"replica": "replica_lost", "drain": "drained"}.get(way, "engine_lost")
        line = f'penstock_router_moves_total{{cause="{cause}",outcome="moved"}}'
        assert await router.metric(line) == 1
        assert await router.metric("penstock_router_move_silence_seconds_count") == 1
        await router.counted('penstock_router_requests_total{ending="answered"')
    assert words_of(moved) == words_of(whole)
    assert len(words_of(whole)) == TOKENS
    assert chunks_of(moved)[-1]["usage"] == chunks_of(whole)[-1]["usage"]
    assert len({tuple(chunk[name] for name in FIRST_SENT) for chunk in chunks_of(moved)}) == 1
    assert moved.count(DONE) == 1
    assert b"token_ids" not in moved


async def test_a_continuations_prompt_includes_the_answer_so_far() -> None:
    replicas = replicas_losing(("engine",), (), events=9)
    async with running_router(*replicas) as router:
        await streamed(router)
    (first,), (then,) = replicas[0].parts, replicas[1].parts
    assert then.submit.endpoint == wire.ENDPOINT_COMPLETIONS
    requested = orjson.loads(then.submit.body)
    assert requested["max_tokens"] == TOKENS - 9
    assert len(requested["prompt"]) == 5 + 9
    assert first.submit.spent_s < then.submit.spent_s < 5
    assert then.submit.ttft_s == pytest.approx(10 + 9 * 5)  # when its tenth token was due before
    assert then.submit.request_id == first.submit.request_id


@pytest.mark.parametrize(("bad", "kept"), [(0, 9), (1, 8), (2, 7), (3, 9)])
async def test_tokens_of_an_incomplete_character_are_left_to_the_continuation(bad: int, kept: int) -> None:
    """The last event has three tokens, and the text of the first one at least."""

    async def loses(part: Part) -> None:
        part.admit()
        for piece in events_of(part.submit.endpoint, part.submit.body, engine="r0", sizes=(3,))[:3]:
            part.output(piece, tokens=3)
        part.fail(wire.FAILURE_ENGINE_LOST, 502)

    first, other = ScriptedReplica("r0", loses), replicas_losing(())[0]
    asked: list[int] = []

    def texts(tokens: list[int]) -> str:
        asked.append(len(tokens))
        return "so far\ufffd" if len(asked) <= bad else "so far"

    other.name, other.texts = "r1", texts
    async with running_router(first, other) as router:
        await streamed(router)
    requested = orjson.loads(other.parts[0].submit.body)
    assert len(requested["prompt"]) == 5 + kept
    assert requested["max_tokens"] == TOKENS - kept
    assert asked == [5 + 9, 5 + 8, 5 + 7][: bad + 1]


async def test_a_slowdown_is_that_of_the_clients_own_prompt() -> None:
    tier = {"name": "chat", "slo": {"ttft": {"slowdown": 5}, "tpot": "100ms"}}
    replicas = replicas_losing(("engine",), ())
    async with router_with(replicas, tiers=[tier]) as router:
        await streamed(router)
    model = named_time_model("llama-3-8b-a100")
    assert model is not None
    assert replicas[1].parts[0].submit.ttft_s == pytest.approx(5 * model.prefill_seconds(5) + 0.9)


async def test_a_tier_without_targets_sets_no_deadline() -> None:
    replicas = replicas_losing(("engine",), ())
    async with router_with(replicas, tiers=[{"name": "chat", "slo": {"tpot": "1s"}}]) as router:
        await streamed(router)
    assert not replicas[1].parts[0].submit.HasField("ttft_s")


async def test_a_continuation_asks_for_admission_and_then_for_best_effort() -> None:
    async def is_full(part: Part) -> None:
        if part.submit.backup:
            await serves(backup)(part)
        else:
            part.reject(wire.REASON_PREFILL_BUDGET, 1.0)

    first, backup = replicas_losing(("replica",), ())
    backup.script = is_full
    async with running_router(first, backup) as router:
        assert len(words_of(await streamed(router))) == TOKENS
    assert [part.submit.backup for part in backup.parts] == [False, True]


async def test_a_stream_moves_as_often_as_the_pool_allows() -> None:
    losses = ("engine",) * 9
    replicas = replicas_losing(losses, losses, losses, losses)
    async with router_with(replicas, routing={"maxMoves": 2, "backup": "reject"}) as router:
        moved = await streamed(router)
        page = [
            await router.metric(f'penstock_router_moves_total{{cause="engine_lost",outcome="{outcome}"}}')
            for outcome in ("moved", "spent")
        ]
    assert page == [2, 1]
    assert sum(len(replica.parts) for replica in replicas) == 3
    assert len(words_of(moved)) == 27
    error = chunks_of(moved)[-1]["error"]
    assert (error["code"], error["message"]) == (
        "engine_lost",
        "the engine was lost while it answered, and the answer cannot be continued on another replica: "
        "it has been moved 2 times",
    )


async def test_replicas_lost_before_they_continue_a_stream_cost_moves() -> None:
    async def dies_at_once(part: Part) -> None:
        part.fail(wire.FAILURE_ENGINE_LOST, 502)

    replicas = replicas_losing(("engine",), (), ())
    replicas[1].script = dies_at_once
    replicas[2].script = dies_at_once
    async with router_with(replicas, routing={"maxMoves": 1, "backup": "reject"}) as router:
        assert chunks_of(await streamed(router))[-1]["error"]["code"] == "engine_lost"
        assert await router.metric('penstock_router_moves_total{cause="engine_lost",outcome="lost"}') == 1
    assert [len(replica.parts) for replica in replicas] == [1, 1, 0]


async def test_a_replica_that_has_come_back_continues_a_stream_if_another_one_is_lost() -> None:
    async def dies_at_once(part: Part) -> None:
        part.fail(wire.FAILURE_ENGINE_LOST, 502)

    replicas = replicas_losing(("engine",), ())
    replicas[1].script = dies_at_once
    async with router_with(replicas, routing={"maxMoves": 2, "backup": "reject"}) as router:
        assert len(words_of(await streamed(router))) == TOKENS
        page = [
            await router.metric(f'penstock_router_moves_total{{cause="engine_lost",outcome="{outcome}"}}')
            for outcome in ("lost", "moved")
        ]
    assert page == [1, 1]
    assert [len(replica.parts) for replica in replicas] == [2, 1]


@pytest.mark.parametrize("returning", [0, 1])
async def test_a_stream_waits_while_no_replica_is_in_service(returning: int) -> None:
    """It continues on its own replica too, as after its router was cut off from all of them for a while."""
    replicas = replicas_losing(("engine stops",), ())
    async with running_router(*replicas) as router:
        replicas[1].send_snapshot(engine_ready=False)
        await eventually(lambda: [load.name for load in router.replica_set.loads()] == ["r0"])
        stream = asyncio.create_task(streamed(router))
        await eventually(lambda: replicas[0].parts and not router.replica_set.loads())
        replicas[returning].send_snapshot()
        assert len(words_of(await stream)) == TOKENS
        assert await router.metric('penstock_router_moves_total{cause="engine_lost",outcome="moved"}') == 1
    assert len(replicas[returning].parts) == 2 - returning


async def test_a_client_does_not_keep_a_waiting_stream_that_it_has_left() -> None:
    replicas = replicas_losing(("engine stops",))
    async with running_router(*replicas) as router:
        stream = asyncio.create_task(streamed(router))
        await eventually(lambda: replicas[0].parts and not router.replica_set.loads())
        assert await router.metric("penstock_router_open_requests") == 1
        stream.cancel()
        await router.counted("penstock_router_open_requests", 0)
        await router.counted('penstock_router_requests_total{ending="client_gone"')
    assert len(replicas[0].parts) == 1


async def test_without_another_replica_a_stream_ends_with_an_error() -> None:
    pool = pool_with(routing={"moveTimeout": "1ms"})
    async with running_router(*replicas_losing(("replica",)), pool=pool) as router:
        stream = await streamed(router)
        assert await router.metric('penstock_router_moves_total{cause="replica_lost",outcome="refused"}') == 1
    error = chunks_of(stream)[-1]["error"]
    assert (error["code"], len(words_of(stream))) == ("replica_lost", 9)
    assert "replica r0 was lost while it answered" in error["message"]
    assert "no replica is in service" in error["message"]


async def test_a_refused_continuation_ends_the_stream() -> None:
    async def refuses(part: Part) -> None:
        part.fail(wire.FAILURE_BAD_REQUEST, 400, b'{"error":{"message":"no"}}')

    first, other = replicas_losing(("engine",), ())
    other.script = refuses
    async with running_router(first, other) as router:
        assert "no other replica takes it" in chunks_of(await streamed(router))[-1]["error"]["message"]


@pytest.mark.parametrize("field", [{"stop": ["x"]}, {"logprobs": True}, {"tools": [{}]}])
async def test_a_stream_that_cannot_move_ends_with_one_error(field: dict[str, Any]) -> None:
    replicas = replicas_losing(("engine",), ())
    async with running_router(*replicas) as router:
        stream = await streamed(router, **field)
        assert await router.metric('penstock_router_moves_total{cause="engine_lost",outcome="fixed"}') == 1
    assert len(words_of(stream)) == 9
    assert chunks_of(stream)[-1]["error"]["code"] == "engine_lost"
    assert len(replicas[1].parts) == 0


async def test_a_stream_whose_body_only_others_can_read_ends_with_one_error() -> None:
    """The router's first reading takes a number that is too large for a float as infinity, as Python does."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **BODY}
    first, other = replicas_losing(("engine",), ())
    answers = first.script

    async def reads_it(part: Part) -> None:
        part.submit.body = part.submit.body.replace(b"1e999", b"1.0")
        await answers(part)

    first.script = reads_it
    async with running_router(first, other) as router:
        content = orjson.dumps(body)[:-1] + b',"temperature":1e999}'
        reply = await router.http.post("/v1/chat/completions", content=content)
        assert await router.metric('penstock_router_moves_total{cause="engine_lost",outcome="fixed"}') == 1
        assert await router.metric("penstock_router_faults_total") == 0
    error = chunks_of(reply.content)[-1]["error"]
    assert (error["code"], len(words_of(reply.content))) == ("engine_lost", 9)
    assert "cannot be read again" in error["message"]


async def test_a_stream_of_a_thinking_model_is_not_continued() -> None:
    thinks: dict[str, Any] = {
        "vllm_xargs": {"simulated_output_tokens": TOKENS, "simulated_thinking_tokens": 20}
    }
    async with running_router(*replicas_losing(("engine",), ())) as router:
        assert "was thinking" in chunks_of(await streamed(router, **thinks))[-1]["error"]["message"]
    async with running_router(*replicas_losing(("engine",), (), events=30)) as router:
        assert len(words_of(await streamed(router, **thinks))) == TOKENS - 20


async def test_an_answer_that_has_all_its_tokens_is_closed() -> None:
    """Its last event, or the usage after it, is lost with the replica."""
    for events in (TOKENS, TOKENS - 1):
        replica = ScriptedReplica("r0")

        async def script(part: Part, events: int = events) -> None:
            part.admit()
            *pieces, last = events_of(part.submit.endpoint, part.submit.body, engine="r0")
            assert len(pieces) == TOKENS - 1
            finish, *_ = last.split(b"\n\n")
            for piece in [*pieces, finish + b"\n\n"][:events]:
                part.output(piece)
            if events < TOKENS:  # the last token has come, its reason has not
                part.output(finish.replace(b'"length"', b"null") + b"\n\n")
            part.fail(wire.FAILURE_ENGINE_LOST, 502)

        replica.script = script
        async with running_router(replica) as router:
            stream = await streamed(router)
        chunks = chunks_of(stream)
        assert len(words_of(stream)) == TOKENS
        assert [one["finish_reason"] for c in chunks for one in c["choices"] if one["finish_reason"]] == [
            "length"
        ]
        assert chunks[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 40, "total_tokens": 45}
        assert stream.endswith(DONE)


async def test_an_answer_whose_last_tokens_have_no_text_is_counted_whole() -> None:
    async def script(part: Part) -> None:
        part.admit()
        finish = b'{"index":0,"delta":{"content":""},"finish_reason":"length","token_ids":[3,4]}'
        first = b'{"index":0,"delta":{"content":"a"},"token_ids":[2]}'
        part.output(b'data: {"id":"x","choices":[' + first + b'],"prompt_token_ids":[1]}\n\n')
        part.output(b'data: {"id":"x","choices":[' + finish + b"]}\n\n", tokens=2)
        part.fail(wire.FAILURE_ENGINE_LOST, 502)

    async with running_router(ScriptedReplica("r0", script)) as router:
        last = chunks_of(await streamed(router))[-1]
    assert last["usage"] == {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}


async def test_a_pool_can_disable_moving_streams() -> None:
    replicas = replicas_losing(("engine",), ())
    async with router_with(replicas, routing={"maxMoves": 0, "backup": "reject"}) as router:
        stream = await streamed(router)
    assert "error" in chunks_of(stream)[-1]
    assert "return_token_ids" not in replicas[0].parts[0].submit.body.decode()
    assert len(replicas[1].parts) == 0


async def test_engines_without_token_ids_stream_unchanged() -> None:
    async with running_router(ScriptedReplica("r0", answers)) as router:
        assert words_of(await streamed(router)) == ["hello"]

    async def loses(part: Part) -> None:
        part.admit()
        part.output(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')
        part.fail(wire.FAILURE_ENGINE_LOST, 502)

    async with running_router(ScriptedReplica("r0", loses), ScriptedReplica("r1")) as router:
        assert "does not report token ids" in chunks_of(await streamed(router))[-1]["error"]["message"]
