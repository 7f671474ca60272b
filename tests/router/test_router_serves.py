"""Requests that are served, by the official client and by plain HTTP."""

import asyncio
from typing import Any

import openai
import orjson
import pytest
from openai.types.chat import ChatCompletionUserMessageParam
from patience import eventually
from penstock_proto import replica_pb2 as wire
from scripted.replica import DONE, Part, ScriptedReplica, answers, chat_chunk, is_busy
from scripted.router import MODEL, RunningRouter, pool_with, running_router

HI: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hi"}]


async def test_the_async_client_gets_a_whole_answer() -> None:
    async with running_router(ScriptedReplica("r0")) as router:
        reply = await router.openai.chat.completions.create(model=MODEL, messages=HI)
    assert reply.choices[0].message.content == "hello"


async def test_the_async_client_gets_a_stream() -> None:
    async with running_router(ScriptedReplica("r0")) as router:
        stream = await router.openai.chat.completions.create(model=MODEL, messages=HI, stream=True)
        words = [chunk.choices[0].delta.content async for chunk in stream]
    assert words == ["hel", "lo"]


async def test_the_sync_client_streams_and_closing_after_done_cancels_nothing() -> None:
    replica = ScriptedReplica("r0")

    def read(client: openai.OpenAI) -> list[str | None]:
        with client, client.chat.completions.create(model=MODEL, messages=HI, stream=True) as stream:
            return [chunk.choices[0].delta.content for chunk in stream]

    async def ends_late(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("hi"))
        part.output(DONE, tokens=0)
        await let_it_finish.wait()
        part.finish()

    let_it_finish = asyncio.Event()
    replica.script = ends_late
    async with running_router(replica) as router:
        assert await asyncio.to_thread(read, router.sync_openai()) == ["hi"]
        let_it_finish.set()
        await router.counted(
            'penstock_router_requests_total{ending="answered",reason="",tier="chat",verdict="admitted"}'
        )
        assert not replica.parts[0].cancelled.is_set()


async def test_the_body_reaches_the_replica_as_it_came() -> None:
    replica = ScriptedReplica("r0")
    body = b'{ "model": "test/model",\n "messages": [], "unknown": {"deep": [1e400, "\\u00e9"]}, "x": 1.0 }'
    body = body.replace(b"1e400", b"1e40")
    async with running_router(replica) as router:
        await router.http.post("/v1/completions", content=body)
    assert replica.parts[0].submit.body == body
    assert replica.parts[0].submit.endpoint == wire.ENDPOINT_COMPLETIONS


async def test_headers_report_tier_verdict_and_replica() -> None:
    async with running_router(ScriptedReplica("r0")) as router:
        reply = await router.chat({"x-request-id": "mine-1"})
    reported = {name: reply.headers[name] for name in reply.headers if name.startswith("x-")}
    assert reported == {
        "x-request-id": "mine-1",
        "x-penstock-tier": "chat",
        "x-penstock-verdict": "admitted",
        "x-penstock-replica": "r0",
        "x-penstock-hops": "1",
    }


async def test_a_streams_content_type_does_not_depend_on_accept() -> None:
    async with running_router(ScriptedReplica("r0")) as router:
        reply = await router.chat({"accept": "application/json"}, stream=True)
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert reply.text.endswith("data: [DONE]\n\n")
        plain = await router.chat({"accept": "text/event-stream"})
        assert plain.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("headers", "body", "tier"),
    [
        ({}, {}, "chat"),
        ({}, {"service_tier": "auto"}, "chat"),
        ({}, {"service_tier": None}, "chat"),
        ({}, {"service_tier": "coder"}, "coder"),
        ({"x-penstock-tier": "batch"}, {"service_tier": "coder"}, "batch"),
    ],
)
async def test_the_tier_is_chosen_by_header_field_or_default(
    headers: dict[str, str], body: dict[str, Any], tier: str
) -> None:
    replica = ScriptedReplica("r0")
    async with running_router(replica) as router:
        reply = await router.chat(headers, **body)
    assert (reply.status_code, reply.headers["x-penstock-tier"]) == (200, tier)
    assert replica.parts[0].submit.tier == tier


async def test_a_requests_own_targets_reach_the_replica() -> None:
    replica = ScriptedReplica("r0")
    async with running_router(replica) as router:
        await router.chat(
            {"x-penstock-tier": "coder", "x-slo-ttft-ms": "250", "x-llm-d-slo-tpot-ms": "2.5e1"}
        )
        await router.chat()
    first, second = (part.submit for part in replica.parts)
    assert (first.ttft_s, first.tpot_s) == (0.25, 0.025)
    assert not second.HasField("ttft_s")
    assert not second.HasField("tpot_s")


async def test_time_spent_is_subtracted_from_budgets() -> None:
    thought_s = 0.0

    async def thinks(part: Part) -> None:
        nonlocal thought_s
        began_s = asyncio.get_running_loop().time()
        for _ in range(100):
            await asyncio.sleep(0)
        thought_s = asyncio.get_running_loop().time() - began_s
        await is_busy(part)

    busy, idle = ScriptedReplica("r0", thinks), ScriptedReplica("r1")
    async with running_router(busy, idle) as router:
        await router.chat()
    assert 0 < thought_s <= idle.parts[0].submit.spent_s - busy.parts[0].submit.spent_s


async def test_requests_go_to_replicas_in_turn() -> None:
    replicas = [ScriptedReplica(f"r{n}") for n in range(3)]
    async with running_router(*replicas) as router:
        took = [(await router.chat()).headers["x-penstock-replica"] for _ in range(6)]
    assert took == ["r0", "r1", "r2", "r0", "r1", "r2"]


async def test_many_streams_at_once_get_their_own_tokens() -> None:
    async def echoes(part: Part) -> None:
        word = orjson.loads(part.submit.body)["messages"][0]["content"]
        part.admit()
        for n in range(20):
            part.output(chat_chunk(f"{word}.{n} "))
            await asyncio.sleep(0)
        part.output(DONE, tokens=0)
        part.finish()

    async def ask(router: RunningRouter, word: str) -> str:
        stream = await router.openai.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": word}], stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async with running_router(ScriptedReplica("r0", echoes), ScriptedReplica("r1", echoes)) as router:
        words = [f"w{n}" for n in range(40)]
        received = await asyncio.gather(*(ask(router, word) for word in words))
    assert received == ["".join(f"{word}.{n} " for n in range(20)) for word in words]


async def test_two_routers_share_a_replica() -> None:
    replica = ScriptedReplica("r0")
    async with running_router(replica) as first:
        await eventually(lambda: replica.sessions == 1)
        port, replica.start = replica.port, _nothing  # type: ignore[method-assign]
        async with running_router(ScriptedReplicaAt("r0", port)) as second:
            replies = await asyncio.gather(first.chat(), second.chat(), first.chat(), second.chat())
        assert [reply.status_code for reply in replies] == [200] * 4
    assert replica.sessions == 2


async def _nothing() -> None:
    """It runs already."""


class ScriptedReplicaAt(ScriptedReplica):
    """The name of a replica that another process runs."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__(name)
        self.port = port

    async def start(self) -> None:
        """It runs already."""

    async def die(self) -> None:
        """It is not ours to end."""


async def test_attainment_is_counted() -> None:
    strict = pool_with(
        tiers=[{"name": "strict", "slo": {"ttft": "0.01ms"}}, {"name": "easy", "slo": {"e2e": "60s"}}]
    )
    replica = ScriptedReplica("r0")
    async with running_router(replica, pool=strict) as router:
        await router.chat({"x-penstock-tier": "strict"}, stream=True)
        await router.chat({"x-penstock-tier": "easy"}, stream=True)
        replica.script = is_busy
        await router.chat({"x-penstock-tier": "easy"})
        assert await router.metric('penstock_router_slo_missed_total{tier="strict",why="ttft"}') == 1
        assert await router.metric('penstock_router_slo_met_total{tier="easy"}') == 1
        assert await router.metric('penstock_router_slo_missed_total{tier="easy",why="rejected"}') == 1
        assert await router.metric('penstock_router_slo_judged_total{tier="easy"}') == 2
        assert await router.metric('penstock_router_ttft_seconds_count{tier="easy"}') == 1


async def test_the_pools_model_is_listed() -> None:
    async with running_router(ScriptedReplica("r0", answers)) as router:
        (model,) = [model async for model in router.openai.models.list()]
        one = await router.openai.models.retrieve(MODEL)
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "penstock")
    assert model.model_extra == {"engine": "simulated", "max_model_len": 4096}
    assert one == model


async def test_the_pool_page_shows_the_targets() -> None:
    tiers = [{"name": "chat", "slo": {"ttft": {"slowdown": 5}, "tpot": "100ms", "judge": "window"}}]
    async with running_router(ScriptedReplica("r0"), pool=pool_with(tiers=tiers)) as router:
        page = (await router.admin.get("/penstock/v1/pool")).json()
    assert page["pool"] == "tests"
    assert page["default_tier"] == "chat"
    assert page["tiers"]["chat"]["ttft_slowdown"] == 5
    assert page["tiers"]["chat"]["tpot_s"] == 0.1
    assert page["tiers"]["chat"]["answer_tpot_s"] is None
    assert page["tiers"]["chat"]["judge"] == "window"
    assert page["time_model"]["name"] == "llama-3-8b-a100"
    assert page["replicas"][0]["state"] == "ready"
