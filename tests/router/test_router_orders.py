"""A router orders replicas by their snapshots and by the requests sent since."""

import asyncio
from typing import Any

import orjson
import pytest
from patience import eventually
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.time_model import to_json
from penstock_proto import replica_pb2 as wire
from penstock_runtime.prompt_marks import prompt_marks
from scripted.replica import Part, ScriptedReplica, answers
from scripted.router import MODEL, RunningRouter, pool_with, running_router

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


async def first_asked(router: RunningRouter, text: str = "hi") -> str:
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
async def test_a_busy_replica_is_not_tried_first(name: str, busy: dict[str, float]) -> None:
    r0, r1 = ScriptedReplica("r0"), ScriptedReplica("r1")
    r0.snapshot, r1.snapshot = standing(**busy), standing()
    async with running_router(r0, r1, pool=pool_with(routing=order(name))) as router:
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
    async with running_router(r0, r1, pool=pool_with(routing=order(name))) as router:
        asking = [asyncio.create_task(first_asked(router, "word " * 200)) for _ in range(6)]
        await eventually(lambda: len(r0.parts) + len(r1.parts) == 6)
        all_there.set()
        await asyncio.gather(*asking)
    assert (len(r0.parts), len(r1.parts)) == (3, 3)


async def test_load_of_answered_requests_is_left_to_the_snapshot() -> None:
    replica = ScriptedReplica("r0")
    replica.snapshot = standing()
    async with running_router(replica) as router:
        await first_asked(router)
        await eventually(lambda: router.replica_set["r0"].load.sent == 0)
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
    async with running_router(r0, r1, pool=pool_with(tiers=slow, routing=order("class-affinity"))) as router:
        assert await first_asked(router, "hi") == "r0"
        assert await first_asked(router, "word " * 4000) == "r1"


PREFIX: dict[str, Any] = {
    "routing": order("prefix"),
    "engine": {"type": "simulated", "timeModel": "llama-3-8b-a100"},
}


def turn(*contents: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content} for content in contents]}


def key_of(*contents: str) -> int:
    """Of the whole prompt of these messages, as the router's client sends it."""
    return prompt_marks(orjson.dumps({"model": MODEL, **turn(*contents)})).marks[-1].key


async def test_a_replica_that_reports_the_prefix_is_tried_first_until_it_no_longer_does() -> None:
    r0, r1 = ScriptedReplica("r0"), ScriptedReplica("r1")
    r0.snapshot, r1.snapshot = standing(), standing(work_s=9.0, running=9, prefill_tokens_left=9000)
    async with running_router(r0, r1, pool=pool_with(**PREFIX)) as router:
        prefixes = router.replica_set.prefixes
        r1.send_prefixes(added=[key_of("one")], complete=True)
        await eventually(lambda: len(prefixes) == 1)
        asked = await router.chat(**turn("one", "two"))
        assert asked.headers["x-penstock-replica"] == "r1"
        assert await first_asked(router, "another") == "r0"
        r1.send_prefixes(removed=[key_of("one")])
        await eventually(lambda: len(prefixes) == 0)
        assert (await router.chat(**turn("one", "two"))).headers["x-penstock-replica"] == "r0"


async def test_prefixes_of_a_lost_replica_are_forgotten() -> None:
    replica = ScriptedReplica("r0")
    async with running_router(replica, pool=pool_with(**PREFIX)) as router:
        replica.send_prefixes(added=[key_of("one")], complete=True)
        await eventually(lambda: len(router.replica_set.prefixes) == 1)
        await replica.die()
        await eventually(lambda: len(router.replica_set.prefixes) == 0)


async def test_a_burst_counts_only_the_uncached_tokens_of_each_prompt() -> None:
    async def waits(part: Part) -> None:
        await asyncio.Event().wait()

    replica = ScriptedReplica("r0", waits)
    async with running_router(replica, pool=pool_with(**PREFIX)) as router:
        replica.send_prefixes(added=[key_of("word " * 4000)], complete=True)
        await eventually(lambda: len(router.replica_set.prefixes) == 1)
        asking = asyncio.create_task(router.chat(**turn("word " * 4000, "and?")))
        await eventually(lambda: len(replica.parts) == 1)
        assert router.replica_set["r0"].load.sent_tokens < 50
        asking.cancel()


@pytest.mark.parametrize("reported", [False, True])
async def test_a_named_session_stays_together_where_no_prefix_is_known(reported: bool) -> None:
    caching = PREFIX | {"engine": {**PREFIX["engine"], "prefixCaching": True}}
    replicas = [ScriptedReplica(f"r{number}") for number in range(4)]
    async with running_router(*replicas, pool=pool_with(**caching)) as router:
        if reported:
            replicas[0].send_prefixes(complete=True)
            await eventually(lambda: router.replica_set.prefixes.known)
        for session in range(3):
            by_header, by_field = set(), set()
            for number in range(3):
                other = turn(f"{number}{session}")
                headers = {"x-session-id": f"s{session}"}
                by_header.add((await router.chat(headers, **other)).headers["x-penstock-replica"])
                by_field.add(
                    (await router.chat(**other, prompt_cache_key=f"s{session}")).headers["x-penstock-replica"]
                )
            assert len(by_header) == len(by_field) == 1


async def test_equal_system_prompts_stay_together_without_prefix_reports() -> None:
    caching = PREFIX | {"engine": {**PREFIX["engine"], "prefixCaching": True}}
    replicas = [ScriptedReplica(f"r{number}") for number in range(4)]
    async with running_router(*replicas, pool=pool_with(**caching)) as router:
        for system in ("you are kind", "you are brief", "you are both"):
            asked = [await router.chat(**turn(system, f"question {number}")) for number in range(3)]
            assert len({reply.headers["x-penstock-replica"] for reply in asked}) == 1


@pytest.mark.parametrize(("caching", "first"), [(True, {"r1"}), (False, {"r0", "r1"})])
async def test_the_default_order_follows_prefixes_if_engines_cache_them(
    caching: bool, first: set[str]
) -> None:
    engine = {**PREFIX["engine"], "prefixCaching": caching}
    long = "word " * 4000
    r0, r1 = ScriptedReplica("r0"), ScriptedReplica("r1")
    r0.snapshot = r1.snapshot = standing()
    async with running_router(r0, r1, pool=pool_with(engine=engine, routing={"backup": "reject"})) as router:
        r1.send_prefixes(added=[key_of(long)], complete=True)
        await eventually(lambda: len(router.replica_set.prefixes) == 1)
        asked = [await router.chat(**turn(long, f"question {number}")) for number in range(4)]
        assert {reply.headers["x-penstock-replica"] for reply in asked} == first
