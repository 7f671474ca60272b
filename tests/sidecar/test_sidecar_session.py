import asyncio
from collections.abc import Callable
from typing import Any, cast

import grpc
import orjson
import pytest
from patience import eventually
from penstock_core.domain.verdict import Reason, Rejected
from penstock_core.timing.time_model import BatchWork
from penstock_proto import replica_pb2 as wire
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.mirror.prefix_index import PrefixIndex
from penstock_sidecar.replica.session import ProtocolError, Session
from penstock_sidecar.requests.replica_request import ReplicaRequest

from tests.sidecar.conftest import DONE, MODEL, TOKEN, Engine, Exchange, Rig, Router, submit

WHOLE = b'{ "choices": [{"text": "a b"}], "usage": {"prompt_tokens": 3, "completion_tokens": 2} }'
BODY = {"model": "m", "prompt": [1, 2, 3], "stream": True}


async def streams(exchange: Exchange) -> None:
    await exchange.begin()
    for data in (TOKEN, TOKEN, DONE):
        await exchange.send(data)
    await exchange.end()


async def test_a_verdict_precedes_the_engines_unmodified_bytes(engine: Engine, router: Router) -> None:
    engine.script = streams
    await router.submit(7)
    finished = (await router.ended(7)).finished
    assert router.kinds(7)[0] == "admitted"
    assert set(router.kinds(7)[1:-1]) == {"output"}
    assert router.data(7) == TOKEN + TOKEN + DONE
    assert sum(event.output.tokens for event in router.events[7]) == 2
    assert (finished.prompt_tokens, finished.completion_tokens) == (3, 2)
    assert finished.ttft_s > 0


async def test_the_verdict_is_sent_before_the_engine_answers(engine: Engine, router: Router) -> None:
    await router.submit(1)
    admitted = (await router.first(1)).admitted
    assert (admitted.ttft_predicted_s, admitted.tpot_predicted_s) == (0.25, 0.05)
    exchange = await engine.asked()
    await exchange.begin()
    await exchange.send(TOKEN + DONE)
    await exchange.end()
    assert (await router.ended(1)).HasField("finished")


async def test_an_answer_that_is_not_streamed_is_one_output(engine: Engine, router: Router) -> None:
    async def whole(exchange: Exchange) -> None:
        await exchange.begin(content_type="application/json")
        await exchange.send(WHOLE[:20])
        await exchange.send(WHOLE[20:])
        await exchange.end()

    engine.script = whole
    await router.submit(1, BODY | {"stream": False})
    finished = (await router.ended(1)).finished
    assert router.kinds(1) == ["admitted", "output", "finished"]
    assert router.events[1][1].output.tokens == 2
    assert router.data(1) == WHOLE
    assert (finished.prompt_tokens, finished.completion_tokens) == (3, 2)


async def test_the_engine_gets_the_body_with_the_slo_in_it(engine: Engine, router: Router) -> None:
    body = {**BODY, "seed": 5, "vllm_xargs": {"simulated_output_tokens": 9}}
    await router.submit(1, body, spent_s=0.4, ttft_s=2.0)
    exchange = await engine.asked()
    assert exchange.path == "/v1/completions"
    assert exchange.headers["x-request-id"] == "r1"
    xargs = exchange.body.pop("vllm_xargs")
    assert exchange.body == {**BODY, "seed": 5}
    assert xargs["simulated_output_tokens"] == 9
    assert xargs["penstock_tier"] == "chat"
    assert xargs["penstock_ttft_s"] == 2.0
    assert xargs["penstock_tpot_s"] == 0.1
    assert 0.4 <= xargs["penstock_spent_s"] < 20
    assert xargs["penstock_best_effort"] is False
    await router.submit(2, {"messages": [{"content": "x"}]}, endpoint=wire.ENDPOINT_CHAT_COMPLETIONS)
    assert (await engine.asked(2)).path == "/v1/chat/completions"


async def test_the_policy_sees_budgets_as_deadlines(rig: Rig, router: Router) -> None:
    await router.submit(1, spent_s=0.4, tpot_s=0.02)
    await router.first(1)
    (view,), ((job,),) = rig.policy.views, rig.policy.asked
    assert job.due_s == pytest.approx(job.request.arrival_s + 1.0)
    assert view.now_s - job.request.arrival_s >= 0.4
    assert (job.tpot_s, job.request.prompt_tokens, job.request.max_output_tokens) == (0.02, 3, 5)


async def test_a_slowdown_is_resolved_by_the_time_model(rig: Rig, router: Router) -> None:
    await router.submit(1, {"prompt": [1] * 1000}, tier="slow")
    await router.first(1)
    ((job,),) = rig.policy.asked
    assert job.request.targets.ttft_s == pytest.approx(5 * rig.estimates.fitted.prefill_seconds(1000))


async def test_new_requests_of_one_frame_are_decided_together(rig: Rig, router: Router) -> None:
    await router.send(wire.RouterFrame(submits=[submit(id) for id in range(1, 6)]))
    for id in range(1, 6):
        await router.first(id)
    assert [len(requested) for requested in rig.policy.asked] == [5]


async def test_an_earlier_request_is_in_the_later_ones_view(rig: Rig, router: Router) -> None:
    await router.submit(1)
    await router.first(1)
    await router.submit(2)
    await router.first(2)
    assert [len(view.waiting) for view in rig.policy.views] == [0, 1]


async def test_every_reason_has_its_value_on_the_wire(rig: Rig, router: Router) -> None:
    for id, reason in enumerate(Reason):
        earliest_s = 1.5 if id % 2 else None
        rig.policy.answers = lambda _, r=reason, e=earliest_s: Rejected(r, e)  # type: ignore[misc]
        await router.submit(id)
        rejected = (await router.first(id)).rejected
        assert wire.Reason.Name(rejected.reason) == f"REASON_{reason.name}"
        assert rejected.HasField("earliest_s") == (earliest_s is not None)
        assert rig.metric("verdicts_total", tier="chat", verdict="rejected", reason=reason.value) == 1
    assert rig.engine.exchanges == []


async def test_a_rejected_request_is_not_forwarded_and_its_id_is_free(rig: Rig, router: Router) -> None:
    rig.policy.answers = lambda _: Rejected(Reason.KV_MEMORY, 3.0)
    await router.submit(1)
    await router.ended(1)
    rig.policy.answers = type(rig.policy)().answers
    await router.submit(1)
    await rig.engine.asked()
    await eventually(lambda: router.kinds(1) == ["rejected", "admitted"])


@pytest.mark.parametrize("more", [{"tier": "batch"}, {"backup": True}])
async def test_best_effort_is_admitted_without_a_plan(rig: Rig, router: Router, more: dict[str, Any]) -> None:
    await router.submit(1, **more)
    assert (await router.first(1)).HasField("best_effort")
    assert rig.policy.asked == []
    assert (await rig.engine.asked()).body["vllm_xargs"]["penstock_best_effort"] is True


async def test_an_invalid_body_gets_its_error_and_no_verdict(rig: Rig, router: Router) -> None:
    await router.submit(1, b'{"prompt": 5}')
    await router.submit(2, b"{")
    await router.submit(3, {"prompt": [1] * 4096})
    await router.submit(4, tier="gold")
    for id in (1, 2, 3, 4):
        failed = (await router.ended(id)).failed
        assert router.kinds(id) == ["failed"]
        assert (failed.failure, failed.status) == (wire.FAILURE_BAD_REQUEST, 400)
    params = [orjson.loads(router.events[id][0].failed.body)["error"]["param"] for id in (1, 2, 3, 4)]
    assert params == ["prompt", None, "prompt", "tier"]
    assert rig.policy.asked == [] and rig.engine.exchanges == []


async def test_several_routers_may_use_one_id_at_a_replica(rig: Rig) -> None:
    rig.engine.script = streams
    async with rig.router() as one, rig.router() as other:
        for id in range(10):
            await one.submit(id)
            await other.submit(id)
        for router in (one, other):
            for id in range(10):
                assert (await router.ended(id)).HasField("finished")
                assert router.data(id) == TOKEN + TOKEN + DONE
    assert len({exchange.key for exchange in rig.engine.exchanges}) == 20


async def test_an_id_in_use_ends_the_session_of_a_router_that_breaks_the_protocol(
    router: Router, engine: Engine
) -> None:
    await router.submit(1)
    exchange = await engine.asked()
    await router.submit(1)
    assert await router.call.code() is grpc.StatusCode.INVALID_ARGUMENT
    await exchange.closed.wait()


async def test_a_planner_that_raises_fails_its_new_requests_and_no_others(rig: Rig, router: Router) -> None:
    def broken(_: object) -> Rejected:
        raise RuntimeError("a fault in the policy")

    await router.submit(1)
    exchange = await rig.engine.asked()
    rig.policy.answers = broken
    await router.submit(2)
    failed = (await router.ended(2)).failed
    assert (failed.failure, failed.status) == (wire.FAILURE_INTERNAL, 500)
    assert b"policy" not in failed.body
    await exchange.begin()
    await exchange.send(TOKEN + DONE)
    await exchange.end()
    assert (await router.ended(1)).HasField("finished")


async def test_describe_returns_the_replicas_identity_limits_and_time_model(rig: Rig, router: Router) -> None:
    reported = await router.stub.Describe(wire.DescribeRequest())
    assert (reported.replica, reported.model, reported.policy) == ("r0", "m", "everybody")
    assert (reported.max_model_len, reported.kv_tokens_total, reported.engine_ready) == (4096, 16000, True)
    assert orjson.loads(reported.time_model_json)["name"] == "test"


async def test_the_first_message_of_a_session_is_the_snapshot(rig: Rig, router: Router) -> None:
    await eventually(lambda: bool(router.frames))
    snapshot = router.frames[0].snapshot
    assert snapshot.engine_ready and not snapshot.draining
    assert snapshot.kv_tokens_total == 16000


async def test_latencies_and_ends_are_counted(rig: Rig, router: Router) -> None:
    rig.engine.script = streams
    await router.submit(1)
    await router.ended(1)
    assert rig.metric("ttft_seconds_count", tier="chat") == 1
    assert rig.metric("ends_total", tier="chat", end="finished") == 1
    assert rig.metric("verdicts_total", tier="chat", verdict="admitted", reason="") == 1
    assert rig.metric("planner_seconds_count") == 1
    assert rig.metric("planner_seconds_max") > 0


async def test_an_unmodified_engine_gets_the_body_unchanged(engine: Engine, bounds: Bounds) -> None:
    rig = Rig(engine, bounds, reads_fields=False)
    raw = b'{ "model":"m", "prompt":[1,2,3] , "stream": true, "stream_options" :{"include_usage":true}}'
    async with rig.serving(), rig.router() as router:
        await router.submit(1, raw)
        exchange = await engine.asked()
        assert exchange.raw == raw
        await exchange.begin()
        await exchange.send(TOKEN * 2)
        await eventually(lambda: len(router.data(1)) == 2 * len(TOKEN))
        (job,) = rig.mirror.view(0.0, rig.estimates.model).running
        assert (job.generated_tokens, job.decoding) == (2, True)


async def test_a_changed_state_reaches_routers_without_requests(rig: Rig) -> None:
    async with rig.router() as idle, rig.router() as busy:
        await eventually(lambda: bool(idle.frames))
        await busy.submit(1)
        await rig.engine.asked()
        rig.replica.tick()
        await eventually(lambda: idle.frames[-1].snapshot.waiting == 1)
        assert rig.metric("waiting") == 1
        assert rig.metric("open_requests") == 1
        assert rig.metric("engine_ready") == 1


async def test_one_router_s_requests_are_in_the_snapshots_of_the_others(rig: Rig) -> None:
    """Do not tick."""
    async with rig.router() as idle, rig.router() as busy:
        await eventually(lambda: bool(idle.frames))
        await busy.submit(1)
        await eventually(lambda: idle.frames[-1].snapshot.waiting == 1)
        assert all(not frame.events for frame in idle.frames)


async def test_a_rejection_sends_nothing_to_other_sessions(rig: Rig) -> None:
    everybody = rig.policy.answers
    rig.policy.answers = lambda _: Rejected(Reason.PREFILL_BUDGET, None)
    async with rig.router() as idle, rig.router() as busy:
        await eventually(lambda: bool(idle.frames))
        await busy.submit(1)
        assert (await busy.ended(1)).HasField("rejected")
        rig.policy.answers = everybody
        await busy.submit(2)
        await eventually(lambda: idle.frames[-1].snapshot.waiting == 1)
        assert len(idle.frames) == 2


async def test_a_learned_slow_down_expires_only_while_idle(rig: Rig) -> None:
    for _ in range(50):
        rig.estimates.observe_step(BatchWork(100), 10 * MODEL.seconds(BatchWork(100)))
    async with rig.router() as router:
        await router.submit(1)
        await rig.engine.asked()
        estimates = rig.estimates.model.scale
        rig.replica.tick()
        rig.replica.tick()
        assert rig.estimates.model.scale == estimates

        def rests() -> bool:
            rig.replica.tick()
            return rig.metric("time_model_scale") < estimates

        await router.cancel(1)
        await eventually(rests)


@pytest.mark.parametrize("given", ["", "two\r\nlines", "nul\x00", "caf\xe9", "x" * 129])
async def test_a_request_id_that_no_header_can_hold_is_replaced(
    engine: Engine, router: Router, given: str
) -> None:
    engine.script = streams
    await router.submit(7, request_id=given)
    assert (await router.ended(7)).HasField("finished")
    assert (await engine.asked()).headers["x-request-id"] not in ("", given)


class Held:
    """An item of a session. cancelled: called as the session ends."""

    id, ended = 1, False

    def __init__(self, cancelled: Callable[[], None]) -> None:
        self.cancelled = cancelled

    async def closed(self) -> None:
        return


async def test_a_frame_being_written_is_sent_before_the_session_ends() -> None:
    """A status cuts off a frame that is being written, and the router loses its events."""
    writes, may_end, written = asyncio.Event(), asyncio.Event(), list[wire.ReplicaFrame]()
    held = cast(ReplicaRequest, Held(may_end.set))
    session = Session(lambda submit, session: held, lambda *_: None, wire.Snapshot, PrefixIndex(), Bounds())

    async def write(frame: wire.ReplicaFrame) -> None:
        writes.set()
        await may_end.wait()
        written.append(frame)

    async def receive(take: Callable[[wire.RouterFrame], None]) -> None:
        await writes.wait()
        take(wire.RouterFrame(submits=[wire.Submit(id=1), wire.Submit(id=1)]))

    with pytest.raises(ProtocolError, match="in use"):
        await session.run(receive, write)
    assert written == [wire.ReplicaFrame(snapshot=wire.Snapshot())]


async def test_a_write_that_fails_as_the_call_is_cancelled_leaves_no_error_unread() -> None:
    """The call is cancelled while the session waits for its last frame, and the frame fails with it.

    An error that is not read would fail this test at its teardown (tests/common/background.py).
    """
    writes, fails, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
    held = cast(ReplicaRequest, Held(cancelled.set))
    session = Session(lambda submit, session: held, lambda *_: None, wire.Snapshot, PrefixIndex(), Bounds())

    async def write(frame: wire.ReplicaFrame) -> None:
        writes.set()
        await fails.wait()
        raise ConnectionError("lost")

    async def receive(take: Callable[[wire.RouterFrame], None]) -> None:
        await writes.wait()
        take(wire.RouterFrame(submits=[wire.Submit(id=1)]))

    call = asyncio.create_task(session.run(receive, write))
    await cancelled.wait()
    fails.set()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
