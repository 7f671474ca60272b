"""A router asks first whom its order says, by what replicas have told and by what it has sent itself."""

import asyncio

import orjson
import pytest
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.time_model import to_json
from penstock_proto import replica_pb2 as wire
from scripted.house import House, house, pool_with, until
from scripted.replica import Part, ScriptedReplica, answers

SPARE = {
    "prefill_tokens_s": 10_000.0,
    "kv_tokens_total": 40_000,
    "kv_tokens_headroom": 40_000,
    "prefill_slack_s": 10.0,
}


def standing(**reported: float) -> wire.Snapshot:
    return wire.Snapshot(engine_ready=True, **(SPARE | reported))  # type: ignore[arg-type]


def order(name: str) -> dict[str, object]:
    return {"order": name, "backup": "reject"}


async def first_asked(router: House, text: str = "hi") -> str:
    reply = await router.chat(messages=[{"role": "user", "content": text}])
    return reply.headers["x-penstock-replica"]


@pytest.mark.parametrize(
    ("name", "busy"),
    [
        ("least-loaded", {"work_s": 9.0}),
        ("lmetric", {"running": 9, "prefill_tokens_left": 900}),
        ("best-fit", {"prefill_wait_s": 20.0}),
        ("best-fit", {"kv_tokens_headroom": 0}),
    ],
)
async def test_whoever_is_busy_is_not_asked_first(name: str, busy: dict[str, float]) -> None:
    r0, r1 = ScriptedReplica("r0"), ScriptedReplica("r1")
    r0.snapshot, r1.snapshot = standing(**busy), standing()
    async with house(r0, r1, pool=pool_with(routing=order(name))) as router:
        assert [await first_asked(router) for _ in range(3)] == ["r1"] * 3


@pytest.mark.parametrize("name", ["least-loaded", "lmetric", "best-fit"])
async def test_a_burst_does_not_follow_one_snapshot(name: str) -> None:
    """None of these requests is answered while the others are sent, so no snapshot knows of any."""
    all_there = asyncio.Event()

    async def waits(part: Part) -> None:
        await all_there.wait()
        await answers(part)

    r0, r1 = ScriptedReplica("r0", waits), ScriptedReplica("r1", waits)
    r0.snapshot, r1.snapshot = standing(work_s=1e-4), standing(work_s=2e-4)
    async with house(r0, r1, pool=pool_with(routing=order(name))) as router:
        asking = [asyncio.create_task(first_asked(router, "word " * 200)) for _ in range(6)]
        await until(lambda: len(r0.parts) + len(r1.parts) == 6)
        all_there.set()
        await asyncio.gather(*asking)
    assert (len(r0.parts), len(r1.parts)) == (3, 3)


async def test_what_was_answered_is_the_snapshots_to_tell() -> None:
    replica = ScriptedReplica("r0")
    replica.snapshot = standing()
    async with house(replica) as router:
        await first_asked(router)
        await until(lambda: router.replica_set["r0"].load.sent == 0)
        assert router.replica_set["r0"].load.sent_tokens == 0


async def test_a_slowdown_is_a_budget_by_the_replicas_own_model() -> None:
    """Its own kind's replica would use up half of a short prompt's budget, and little of a long one's."""
    model = time_model("llama-3-8b-a100")
    slow = [{"name": "chat", "slo": {"ttft": {"slowdown": 5}, "tpot": "1s"}}]
    r0, r1 = ScriptedReplica("r0"), ScriptedReplica("r1")
    for replica in (r0, r1):
        replica.time_model_json = orjson.dumps(to_json(model)).decode()
    r0.snapshot = standing(tightest_tpot_s=0.1)
    r1.snapshot = standing(tightest_tpot_s=1.0, prefill_wait_s=0.2)
    async with house(r0, r1, pool=pool_with(tiers=slow, routing=order("class-affinity"))) as router:
        assert await first_asked(router, "hi") == "r0"
        assert await first_asked(router, "word " * 4000) == "r1"
