"""Replicas of other versions, and replicas that send nonsense: none of them ends the router."""

import asyncio
import contextlib
import math
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import eventually
from penstock_core.forecast.snapshot import Snapshot
from penstock_core.routing.orders import ORDERS
from penstock_core.routing.replica_load import ReplicaLoad, RoutingRequest
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.time_model import to_json
from penstock_proto import replica_pb2 as wire
from penstock_routing.replicas import wire_conversion
from penstock_routing.replicas.link_state import LinkState
from scripted.replica import Part, ScriptedReplica, answers, chat_answer, chat_chunk
from scripted.router import RunningRouter, running_router
from structlog.testing import capture_logs

SOUND = to_json(time_model("llama-3-8b-a100"))


def malformed_of(replica: str) -> str:
    return f'penstock_router_replica_malformed_total{{replica="{replica}"}}'


async def serves(router: RunningRouter) -> bool:
    return (await router.chat()).status_code == 200


async def test_unknown_fields_of_a_later_versions_time_model_are_ignored() -> None:
    replica = ScriptedReplica("r0")
    replica.time_model_json = orjson.dumps(SOUND | {"name": "later", "curvature": [1, 2]}).decode()
    async with running_router(replica) as router:
        page = (await router.admin.get("/penstock/v1/pool")).json()
        assert page["time_model"]["name"] == "later"
        assert await serves(router)


@pytest.mark.parametrize(
    "said", ["[]", "{", '{"name":"x","terms":[]}', '{"name":"x","terms":[{"token_s":-1}]}']
)
async def test_a_malformed_replica_is_left_out_counted_and_tried_again(said: str) -> None:
    bad, good = ScriptedReplica("bad"), ScriptedReplica("good")
    bad.time_model_json = said
    async with running_router(bad, good, ready=False) as router:
        await eventually(lambda: bad.described > 3 and router.replica_set.ready)
        for _ in range(4):
            assert (await router.chat()).headers["x-penstock-replica"] == "good"
        assert await router.metric(malformed_of("bad")) > 2
        assert await router.metric(malformed_of("good")) == 0
        bad.time_model_json = orjson.dumps(SOUND).decode()
        await router.all_in(LinkState.READY)


async def test_a_malformed_replica_is_logged_once() -> None:
    replica = ScriptedReplica("bad")
    replica.time_model_json = "{"
    with capture_logs() as logs:
        async with running_router(replica, ready=False):
            await eventually(lambda: replica.described > 4)
    assert len([line for line in logs if line.get("why", "").startswith("malformed time model")]) == 1


async def test_a_malformed_description_does_not_affect_open_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock_routing.replicas.replica_link.DESCRIBE_INTERVAL_S", 0.01)
    replica = ScriptedReplica("r0")
    replica.time_model_json = orjson.dumps(SOUND).decode()
    async with running_router(replica) as router:
        replica.time_model_json = "{"
        await eventually(lambda: router.replica_set["r0"].malformed > 2)
        assert await serves(router)
        assert router.replica_set["r0"].description.time_model == time_model("llama-3-8b-a100")
        assert replica.sessions == 1


@pytest.mark.parametrize("value", [math.nan, -1.0, -math.inf])
@pytest.mark.parametrize(
    "field", ["work_s", "prefill_wait_s", "prefill_tokens_s", "step_s", "tightest_tpot_s"]
)
async def test_an_invalid_snapshot_stops_requests_until_the_next(field: str, value: float) -> None:
    async def begins(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("one"))

    bad, good = ScriptedReplica("bad", begins), ScriptedReplica("good")
    async with running_router(bad, good) as router:
        carried = asyncio.create_task(router.chat(stream=True))
        await eventually(lambda: len(bad.parts) == 1)
        bad.send_snapshot(**{field: value})
        await eventually(lambda: router.replica_set["bad"].state is LinkState.MALFORMED)
        assert [load.name for load in router.replica_set.loads()] == ["good"]
        assert await router.metric(malformed_of("bad")) == 1
        bad.parts[0].output(b"data: [DONE]\n\n")
        bad.parts[0].finish()
        assert (await carried).text.endswith("data: [DONE]\n\n")
        bad.send_snapshot(running=1)
        await router.all_in(LinkState.READY)
        assert bad.sessions == 1


async def test_a_replica_of_the_first_version_has_no_forecast() -> None:
    replica = ScriptedReplica("r0")
    replica.snapshot = wire.Snapshot(engine_ready=True)
    async with running_router(replica) as router:
        assert await serves(router)


async def test_an_end_with_invalid_figures_is_left_out_of_metrics() -> None:
    async def answers_nonsense(part: Part) -> None:
        part.send(wire.Event(admitted=wire.Admitted(ttft_predicted_s=math.nan, tpot_predicted_s=-1)))
        part.output(chat_answer("hello"), tokens=2)
        said = wire.Finished(prompt_tokens=5, completion_tokens=2, ttft_s=math.nan, tpot_s=-math.inf)
        part.send(wire.Event(finished=said))

    async with running_router(ScriptedReplica("r0", answers_nonsense)) as router:
        assert await serves(router)
        for name in ("ttft", "tpot", "e2e"):
            assert math.isfinite(await router.metric(f"penstock_router_{name}_seconds_sum"))


async def test_a_failure_of_a_later_version_is_answered_by_its_status() -> None:
    async def fails_as_never_before(part: Part) -> None:
        part.send(wire.Event(failed=wire.Failed(failure=77, status=503)))  # type: ignore[arg-type]

    async with running_router(ScriptedReplica("r0", fails_as_never_before)) as router:
        assert (await router.chat()).status_code == 503


async def test_an_event_that_cannot_be_handled_ends_its_own_request_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def begins(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("one"))

    replica = ScriptedReplica("r0", begins)
    async with running_router(replica) as router:
        other = asyncio.create_task(router.chat(stream=True))
        await eventually(lambda: len(replica.parts) == 1 and router.replica_set["r0"].load.sent == 0)
        sound = wire_conversion.accepted

        def breaks(event: wire.Event) -> Any:
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(wire_conversion, "accepted", breaks)
        assert (await router.chat(stream=True)).status_code == 502
        monkeypatch.setattr(wire_conversion, "accepted", sound)
        await replica.parts[1].cancelled.wait()
        replica.parts[0].output(b"data: [DONE]\n\n")
        replica.parts[0].finish()
        assert (await other).text.endswith("data: [DONE]\n\n")
        replica.script = answers
        assert await serves(router)
        assert replica.sessions == 1


async def test_a_fault_in_a_link_loses_only_that_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = ScriptedReplica("r0")
    async with running_router(replica) as router:
        sound = wire_conversion.snapshot

        def breaks(message: wire.Snapshot) -> Snapshot:
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(wire_conversion, "snapshot", breaks)
        replica.send_snapshot(running=1)
        await eventually(lambda: router.replica_set["r0"].state is LinkState.LOST)
        monkeypatch.setattr(wire_conversion, "snapshot", sound)
        await router.all_in(LinkState.READY)
        assert await serves(router)


ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)
COUNT = st.integers(0, 2**64 - 1)
SNAPSHOTS = st.builds(
    wire.Snapshot,
    running=st.integers(0, 2**32 - 1),
    waiting=st.integers(0, 2**32 - 1),
    prefill_tokens_left=COUNT,
    kv_tokens_free=COUNT,
    kv_tokens_total=COUNT,
    kv_tokens_headroom=COUNT,
    work_s=ANY_FLOAT,
    prefill_wait_s=ANY_FLOAT,
    prefill_slack_s=ANY_FLOAT,
    prefill_tokens_s=ANY_FLOAT,
    step_s=ANY_FLOAT,
    tightest_tpot_s=ANY_FLOAT,
)


@given(st.lists(SNAPSHOTS, min_size=1, max_size=4), st.integers(0, 2**20), st.integers(0, 10))
def test_every_order_accepts_any_snapshots(said: list[wire.Snapshot], size: int, turn: int) -> None:
    loads = [ReplicaLoad(str(at), wire_conversion.snapshot(one), 0.1, 1, 9) for at, one in enumerate(said)]
    for order in ORDERS.values():
        assert sorted(order(loads, RoutingRequest("chat", size, turn))) == sorted(load.name for load in loads)


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_is_a_time_model_or_malformed(text: str) -> None:
    with contextlib.suppress(wire_conversion.MalformedMessage):
        wire_conversion.time_model(wire.DescribeReply(time_model_json=text))
