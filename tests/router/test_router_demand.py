"""The demand on a pool, as a router reports it to autoscalers."""

from typing import Any

from patience import eventually
from penstock_proto import replica_pb2 as wire
from scripted.replica import Part, ScriptedReplica, chat_answer, chat_chunk, is_busy, serves_as_backup
from scripted.router import MODEL, RunningRouter, pool_with, running_router


async def demand(router: RunningRouter) -> dict[str, Any]:
    page = (await router.admin.get("/penstock/v1/demand")).json()
    assert isinstance(page, dict)
    return page


async def tier_of(router: RunningRouter, tier: str = "chat") -> dict[str, int]:
    counted = (await demand(router))["tiers"][tier]
    assert isinstance(counted, dict)
    return {name: count for name, count in counted.items() if count}


async def test_every_tier_is_on_the_page_from_the_start() -> None:
    async with running_router(ScriptedReplica("r0")) as router:
        page = await demand(router)
        assert (page["held"], list(page["tiers"])) == (0, ["chat", "coder", "batch"])
        assert not any(count for tier in page["tiers"].values() for count in tier.values())
        assert page["since_s"] > 0


async def test_an_answered_request_is_counted_to_its_end() -> None:
    async with running_router(ScriptedReplica("r0")) as router:
        await router.chat()
        await router.counted('penstock_router_slo_judged_total{tier="chat"}')
        counted = {"arrived": 1, "admitted": 1, "hops": 1, "judged": 1, "met": 1}
        assert await tier_of(router) == {**counted, "all_judged": 1, "all_met": 1}


async def test_a_request_is_demand_before_it_is_answered() -> None:
    async def begins(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("one"))

    async with running_router(ScriptedReplica("r0", begins)) as router:
        body = {"model": MODEL, "messages": [], "stream": True}
        async with router.http.stream("POST", "/v1/chat/completions", json=body):
            assert await tier_of(router) == {"arrived": 1, "admitted": 1, "hops": 1}


async def test_a_verdict_is_counted_before_its_answer_ends() -> None:
    async def begins(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("one"))

    async with running_router(ScriptedReplica("r0", begins)) as router:
        none = 'penstock_router_verdicts_total{tier="coder",verdict="rejected"} 0.0'
        assert none in (await router.admin.get("/metrics")).text.splitlines()
        body = {"model": MODEL, "messages": [], "stream": True}
        async with router.http.stream("POST", "/v1/chat/completions", json=body):
            one = 'penstock_router_verdicts_total{tier="chat",verdict="admitted"} 1.0'
            assert one in (await router.admin.get("/metrics")).text.splitlines()


async def test_a_refused_request_is_missed_and_not_admitted() -> None:
    async with running_router(ScriptedReplica("r0", is_busy), ScriptedReplica("r1", is_busy)) as router:
        assert (await router.chat()).status_code == 429
        counted = {"arrived": 1, "rejected": 1, "hops": 2, "all_judged": 1}
        assert await tier_of(router) == counted


async def test_requests_served_by_the_backup_count_as_best_effort() -> None:
    pool = pool_with(routing={"backup": "best-effort"})
    async with running_router(ScriptedReplica("r0", serves_as_backup), pool=pool) as router:
        assert (await router.chat()).status_code == 200
        await router.counted('penstock_router_slo_judged_total{tier="chat"}')
        counted = await tier_of(router)
        assert (counted["best_effort"], counted["all_judged"]) == (1, 1)
        assert "judged" not in counted


async def test_requests_rejected_with_never_are_no_demand_for_replicas() -> None:
    async def never(part: Part) -> None:
        part.reject(wire.REASON_NEVER)

    async with running_router(ScriptedReplica("r0", never)) as router:
        assert (await router.chat()).status_code == 429
        assert await tier_of(router) == {"arrived": 1, "never": 1, "hops": 1, "all_judged": 1}


async def test_a_request_that_a_lost_replica_had_admitted_counts_once() -> None:
    async def admits_and_dies(part: Part) -> None:
        part.admit()
        await eventually(lambda: part.submit.id in [p.submit.id for p in dying.parts])
        part.fail(wire.FAILURE_ENGINE_LOST, 502)

    async def answers_late(part: Part) -> None:
        part.admit()
        part.output(chat_answer("late"))
        part.finish()

    dying, other = ScriptedReplica("r0", admits_and_dies), ScriptedReplica("r1", answers_late)
    async with running_router(dying, other) as router:
        assert (await router.chat()).headers["x-penstock-replica"] == "r1"
        await router.counted('penstock_router_slo_judged_total{tier="chat"}')
        counted = await tier_of(router)
        assert (counted["arrived"], counted["admitted"], counted["judged"]) == (1, 1, 1)


async def test_the_page_has_the_last_snapshot_of_each_replica() -> None:
    replica = ScriptedReplica("r0")
    replica.snapshot = wire.Snapshot(engine_ready=True, running=3, work_s=1.5, tightest_tpot_s=float("inf"))
    async with running_router(replica) as router:
        [reported] = (await demand(router))["replicas"]
        assert (reported["name"], reported["state"], reported["running"], reported["work_s"]) == (
            "r0",
            "ready",
            3,
            1.5,
        )
        assert reported["tightest_tpot_s"] is None
        replica.send_snapshot(draining=True)
        await eventually(lambda: not router.replica_set.ready)
        [reported] = (await demand(router))["replicas"]
        assert reported["state"] == "draining"
