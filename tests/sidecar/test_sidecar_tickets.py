"""A router with a ticket reads the answer at the engine; the sidecar follows reports and router states."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from patience import eventually
from penstock_core.domain.ticket import TICKET, EngineTicket, opened
from penstock_core.domain.verdict import BestEffort
from penstock_proto import replica_pb2 as wire
from penstock_proto.telemetry_pb2 import StepReport
from penstock_sidecar.bounds import Bounds

from tests.sidecar.conftest import DONE, TOKEN, Engine, Rig, Router

KEY = b"k" * 32
IDLE: dict[str, Any] = {"kv_blocks_total": 500, "kv_blocks_free": 500, "block_tokens": 16}


@pytest.fixture
async def rig(engine: Engine, bounds: Bounds) -> AsyncIterator[Rig]:
    made = Rig(engine, bounds, reads_fields=True, ticket_key=KEY)
    async with made.serving():
        made.reports.receive([StepReport(sequence=1, checks_tickets=True, **IDLE)])
        yield made


def runs(key: str, generated: int, sequence: int = 2) -> StepReport:
    """A report of one running request, by an engine that checks tickets."""
    return StepReport(
        sequence=sequence,
        checks_tickets=True,
        running=1,
        request_ids=[key],
        computed_tokens=[3 + generated],
        generated_tokens=[generated],
        best_effort=[False],
        next_duration_s=0.5,
        **IDLE,
    )


async def ticket_of(router: Router, id: int, body: dict[str, Any] | None = None, **more: Any) -> EngineTicket:
    """The ticket in a request's verdict."""
    await router.submit(id, body, direct=True, **more)
    event = await router.first(id)
    ticket = opened(orjson.loads(event.engine_fields)[TICKET], KEY)
    assert ticket is not None
    return ticket


async def report_state(router: Router, id: int, state: "wire.AnswerState.ValueType", **counts: int) -> None:
    await router.send(wire.RouterFrame(engine_answers=[wire.EngineAnswer(id=id, state=state, **counts)]))


async def reported(router: Router, id: int, state: "wire.AnswerState.ValueType", **counts: int) -> wire.Event:
    """A request's last event, after the router has reported this state of its answer."""
    await report_state(router, id, state, **counts)
    return await router.ended(id)


async def test_a_verdict_has_the_ticket_and_the_router_sends_the_request(
    rig: Rig, engine: Engine, router: Router
) -> None:
    ticket = await ticket_of(router, 1)
    assert router.kinds(1) == ["admitted"]
    assert (ticket.fields["penstock_tier"], ticket.fields["penstock_best_effort"]) == ("chat", False)
    await router.submit(2)  # through the sidecar
    assert (await engine.asked()).body["vllm_xargs"]["penstock_id"] != ticket.fields["penstock_id"]
    assert rig.replica.unfinished == 2


async def test_a_best_effort_requests_ticket_is_marked(rig: Rig, router: Router) -> None:
    rig.policy.answers = lambda _: BestEffort()
    ticket = await ticket_of(router, 1)
    assert router.kinds(1) == ["best_effort"]
    assert ticket.fields["penstock_best_effort"] is True


async def test_a_ticket_is_for_all_answers_of_its_request(rig: Rig, router: Router) -> None:
    ticket = await ticket_of(router, 1, {"prompt": [1], "n": 3, "max_tokens": 5, "stream": True})
    assert ticket.uses == 3


async def test_a_clients_own_xargs_are_forwarded_without_penstocks_fields(rig: Rig, router: Router) -> None:
    xargs = {"seed": 7, "penstock_ttft_s": 0.001, TICKET: "forged"}
    await router.submit(1, {"prompt": [1], "stream": True, "vllm_xargs": xargs}, direct=True)
    fields = orjson.loads((await router.first(1)).engine_fields)
    assert set(fields) == {"seed", TICKET} and opened(fields[TICKET], KEY) is not None


async def test_a_rejection_has_no_ticket(rig: Rig, router: Router) -> None:
    await router.submit(1, tier="nowhere", direct=True)
    assert not (await router.first(1)).engine_fields


async def test_an_older_router_is_served_by_the_sidecar(rig: Rig, engine: Engine, router: Router) -> None:
    await router.submit(1)
    exchange = await engine.asked()
    assert opened(exchange.body["vllm_xargs"][TICKET], KEY) is not None
    assert not (await router.first(1)).engine_fields


@pytest.mark.parametrize("checks", [False, True], ids=["an older engine", "one that is silent"])
async def test_without_an_engine_that_checks_tickets_no_ticket_is_issued(
    checks: bool, rig: Rig, engine: Engine, router: Router
) -> None:
    rig.reports.receive([StepReport(sequence=2, checks_tickets=checks, **IDLE)])
    if checks:
        rig.mirror.lose_reports()
    await router.submit(1, direct=True)
    await engine.asked()
    assert not (await router.first(1)).engine_fields


async def test_a_whole_answer_ends_with_figures_of_reports_and_usage(rig: Rig, router: Router) -> None:
    key = str((await ticket_of(router, 1)).fields["penstock_id"])
    for sequence, generated in enumerate((1, 2, 3), start=2):
        rig.reports.receive([runs(key, generated, sequence)])
    await report_state(router, 1, wire.ANSWER_STATE_BEGUN)
    last = await reported(
        router, 1, wire.ANSWER_STATE_WHOLE, tokens=3, prompt_tokens=4, completion_tokens=5, cached_tokens=2
    )
    said = last.finished
    assert (said.prompt_tokens, said.completion_tokens, said.cached_tokens) == (4, 5, 2)
    assert said.ttft_s > 0 and said.tpot_s > 0
    assert (rig.replica.unfinished, rig.metric("direct_answers_total", outcome="whole")) == (0, 1)
    assert rig.metric("ttft_seconds_count", tier="chat") == 1
    assert rig.metric("ends_total", tier="chat", end="finished") == 1


async def test_a_whole_answer_without_reports_has_the_routers_count(rig: Rig, router: Router) -> None:
    await ticket_of(router, 1)
    said = (await reported(router, 1, wire.ANSWER_STATE_WHOLE, tokens=2)).finished
    assert (said.completion_tokens, said.prompt_tokens) == (2, 3)
    assert said.ttft_s > 0


async def test_a_whole_answer_has_the_times_of_its_tokens(rig: Rig, router: Router) -> None:
    key = str((await ticket_of(router, 1, {"prompt": [1, 2, 3], "max_tokens": 5})).fields["penstock_id"])
    for sequence, generated in enumerate((1, 2), start=2):
        rig.reports.receive([runs(key, generated, sequence)])
    last = await reported(router, 1, wire.ANSWER_STATE_WHOLE, tokens=3, prompt_tokens=3, completion_tokens=3)
    assert len(last.finished.token_gaps_us) == 3


async def test_an_engine_without_room_is_a_rejection(rig: Rig, router: Router) -> None:
    await ticket_of(router, 1)
    last = await reported(router, 1, wire.ANSWER_STATE_FULL)
    assert last.rejected.reason == wire.REASON_QUEUE_FULL
    assert (rig.replica.unfinished, rig.metric("engine_full_total")) == (0, 1)


@pytest.mark.parametrize(
    ("state", "failure"),
    [
        (wire.ANSWER_STATE_LOST, wire.FAILURE_ENGINE_LOST),
        (wire.ANSWER_STATE_REFUSED, wire.FAILURE_ENGINE_REFUSED),
    ],
)
async def test_an_answer_that_never_arrives_frees_its_place(
    state: "wire.AnswerState.ValueType", failure: "wire.Failure.ValueType", rig: Rig, router: Router
) -> None:
    await ticket_of(router, 1)
    assert (await reported(router, 1, state)).failed.failure == failure
    assert rig.replica.unfinished == 0


async def test_a_router_that_cannot_reach_the_engine_is_served_by_the_sidecar(
    rig: Rig, engine: Engine, router: Router
) -> None:
    ticket = await ticket_of(router, 1)
    await report_state(router, 1, wire.ANSWER_STATE_UNREACHABLE)
    exchange = await engine.asked()
    assert exchange.key == ticket.fields["penstock_id"]
    await exchange.begin()
    await exchange.send(TOKEN + DONE)
    await exchange.end()
    await router.ended(1)
    assert (router.data(1), router.kinds(1)) == (TOKEN + DONE, ["admitted", "output", "finished"])


async def test_states_of_unknown_requests_are_ignored(rig: Rig, engine: Engine, router: Router) -> None:
    await router.submit(1)
    exchange = await engine.asked()
    await report_state(router, 1, wire.ANSWER_STATE_WHOLE, tokens=9)  # it passes the sidecar
    await report_state(router, 2, wire.ANSWER_STATE_LOST)  # it is unknown
    await ticket_of(router, 3)
    await report_state(router, 3, 99)  # type: ignore[arg-type]  # of a later version
    await exchange.begin()
    await exchange.send(TOKEN + DONE)
    await exchange.end()
    assert (await router.ended(1)).finished.completion_tokens == 1
    assert rig.replica.unfinished == 1


async def test_a_disconnected_client_frees_its_place_immediately(rig: Rig, router: Router) -> None:
    await ticket_of(router, 1)
    await router.cancel(1)
    await eventually(lambda: rig.replica.unfinished == 0)
    assert rig.metric("ends_total", tier="chat", end="cancelled") == 1


async def test_a_router_that_crashes_frees_its_places(rig: Rig, router: Router) -> None:
    await ticket_of(router, 1)
    router.call.cancel()
    await eventually(lambda: rig.replica.unfinished == 0)


async def test_an_unused_ticket_is_revoked(rig: Rig, router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    unused, used = [str((await ticket_of(router, id)).fields["penstock_id"]) for id in (1, 2)]
    rig.reports.receive([runs(used, 1)])
    rig.replica.tick()
    assert rig.replica.unfinished == 2
    monkeypatch.setattr("penstock_sidecar.replica.accepted_requests.UNUSED_S", 0.0)
    rig.replica.tick()
    assert (await router.ended(1)).failed.failure == wire.FAILURE_ENGINE_LOST
    assert (rig.replica.unfinished, rig.metric("direct_answers_total", outcome="unused")) == (1, 1)
    assert unused != used


async def test_a_drain_returns_requests_that_the_engine_has_not_started(rig: Rig, router: Router) -> None:
    await ticket_of(router, 1)
    begun = await ticket_of(router, 2)
    await ticket_of(router, 3)
    await report_state(router, 3, wire.ANSWER_STATE_BEGUN)
    rig.reports.receive([runs(str(begun.fields["penstock_id"]), 1)])
    await ticket_of(router, 4)  # earlier states have been read
    assert await rig.replica.drain(0.001) == 2
    for id in (1, 4):
        assert (await router.ended(id)).failed.failure == wire.FAILURE_RETURNED
    assert router.kinds(2) == router.kinds(3) == ["admitted"]


async def test_thinking_ends_when_the_router_reports_it(rig: Rig, router: Router) -> None:
    key = str((await ticket_of(router, 1)).fields["penstock_id"])
    await report_state(router, 1, wire.ANSWER_STATE_BEGUN, thinking_tokens=2)
    await eventually(lambda: rig.mirror.thinking_tokens(key) == 2)
    assert (await reported(router, 1, wire.ANSWER_STATE_WHOLE, tokens=4)).finished.thinking_tokens == 2


async def test_a_router_gets_progress_without_output(rig: Rig, router: Router) -> None:
    key = str((await ticket_of(router, 1)).fields["penstock_id"])
    frames = len(router.frames)
    rig.reports.receive([runs(key, 1)])
    await eventually(lambda: len(router.frames) > frames)
    assert router.frames[-1].snapshot.running == 1
