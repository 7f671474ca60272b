"""A request for several answers is planned as as many jobs, and taken with all of them or not at all."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from patience import eventually
from penstock_core.domain.engine_fields import sequence_ids
from penstock_core.domain.verdict import Admitted, Reason, Rejected
from penstock_core.policies import build
from penstock_proto import replica_pb2 as wire
from penstock_proto.telemetry_pb2 import StepReport
from penstock_sidecar.bounds import Bounds

from tests.sidecar.conftest import DONE, TOKEN, Engine, Rig, Router, submit

BODY: dict[str, Any] = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 40, "stream": True}


@pytest.fixture
def bounds() -> Bounds:
    return replace(Bounds(), probe_s=0.05, requests=8, best_effort=3)


async def test_each_answer_is_a_job(engine: Engine, rig: Rig, router: Router) -> None:
    await router.submit(1, BODY | {"n": 3})
    await router.first(1)
    ((first, second, third),) = rig.policy.asked
    assert first.request.max_output_tokens == 40
    key = (await engine.asked()).key
    assert [job.request.id for job in (first, second, third)] == list(sequence_ids(key, 3))
    assert len(rig.mirror.view(0.0, rig.estimates.model).waiting) == 3
    await router.cancel(1)
    await eventually(lambda: rig.replica.unfinished == 0)
    assert not rig.mirror.view(0.0, rig.estimates.model).waiting


async def test_each_prompt_of_a_list_is_a_job_as_long_as_the_longest(rig: Rig, router: Router) -> None:
    await router.submit(1, BODY | {"prompt": [[1], [1, 2, 3, 4]], "n": 2})
    await router.first(1)
    (jobs,) = rig.policy.asked
    assert [job.request.prompt_tokens for job in jobs] == [4] * 4


async def test_one_answer_that_does_not_fit_rejects_them_all(
    engine: Engine, rig: Rig, router: Router
) -> None:
    rig.policy.answers = lambda job: (
        Rejected(Reason.KV_MEMORY, 2.0) if job.request.id.endswith("~2") else Admitted(0.25, 0.05)
    )
    await router.send(wire.RouterFrame(submits=[submit(1, BODY | {"n": 3}), submit(2)]))
    assert (await router.ended(1)).rejected.reason == wire.REASON_KV_MEMORY
    assert (await router.first(2)).HasField("admitted")
    assert [len(requested) for requested in rig.policy.asked] == [1, 3]  # it displaces no request in the plan
    assert len((await engine.asked()).body) and len(engine.exchanges) == 1


async def test_bounds_count_answers(rig: Rig, router: Router) -> None:
    await router.submit(1, BODY | {"n": 5})
    await router.first(1)
    await router.submit(2, BODY | {"n": 4})
    assert (await router.first(2)).rejected.reason == wire.REASON_QUEUE_FULL
    await router.submit(3, BODY | {"n": 3})
    assert (await router.first(3)).HasField("admitted")
    for id in (1, 3):
        await router.cancel(id)
    await eventually(lambda: rig.replica.unfinished == 0)
    await router.submit(4, BODY | {"n": 4}, backup=True)
    assert (await router.first(4)).rejected.reason == wire.REASON_QUEUE_FULL
    await router.submit(5, BODY | {"n": 3}, backup=True)
    assert (await router.first(5)).HasField("best_effort")


async def test_reports_have_each_answer(engine: Engine, rig: Rig, router: Router) -> None:
    await router.submit(1, BODY | {"n": 2})
    key = (await engine.asked()).key
    row: dict[str, Any] = {"computed_tokens": [4, 3], "generated_tokens": [2, 1]}
    memory: dict[str, Any] = {"kv_blocks_total": 500, "kv_blocks_free": 400, "block_tokens": 16}
    keys = sequence_ids(key, 2)
    rig.reports.receive(
        [StepReport(sequence=1, running=2, request_ids=keys, best_effort=[False] * 2, **row, **memory)]
    )
    view = rig.mirror.view(0.0, rig.estimates.model)
    assert [(job.request.tier, job.generated_tokens) for job in view.running] == [("chat", 2), ("chat", 1)]
    assert not view.waiting


async def test_reports_have_the_length_of_each_prompt_of_a_list(
    engine: Engine, rig: Rig, router: Router
) -> None:
    await router.submit(1, BODY | {"prompt": [[1], [1, 2, 3, 4]]})
    key = (await engine.asked()).key
    row: dict[str, Any] = {"computed_tokens": [4, 1], "generated_tokens": [1, 1]}
    memory: dict[str, Any] = {"kv_blocks_total": 500, "kv_blocks_free": 400, "block_tokens": 16}
    keys = sequence_ids(key, 2)
    rig.reports.receive(
        [StepReport(sequence=1, running=2, request_ids=keys, best_effort=[False] * 2, **row, **memory)]
    )
    view = rig.mirror.view(0.0, rig.estimates.model)
    assert [job.request.prompt_tokens for job in view.running] == [4, 1]
    assert all(job.decoding for job in view.running)


async def test_forwarded_tokens_are_divided_among_the_answers(
    engine: Engine, rig: Rig, router: Router
) -> None:
    await router.submit(1, BODY | {"n": 3})
    exchange = await engine.asked()
    await exchange.begin()
    await exchange.send(TOKEN * 7)
    await eventually(lambda: "output" in router.kinds(1))
    running = rig.mirror.view(0.0, rig.estimates.model).running
    assert [job.generated_tokens for job in running] == [3, 2, 2]
    await exchange.send(DONE)
    await exchange.end()
    assert (await router.ended(1)).finished.completion_tokens == 7
    assert rig.replica.unfinished == 0


class TestBeforeAnExternalEngine:
    @pytest.fixture
    async def rig(self, engine: Engine, bounds: Bounds) -> AsyncIterator[Rig]:
        made = Rig(engine, bounds, reads_fields=False, held_by=build("fcfs"))
        async with made.serving():
            yield made

    async def test_all_answers_of_a_request_are_released_together(
        self, engine: Engine, rig: Rig, router: Router
    ) -> None:
        for id in (1, 2):
            await router.submit(id, BODY | {"n": 3})  # two slots, too few for all sequences of one request
        for number, id in ((1, 1), (2, 2)):
            exchange = await engine.asked(number)
            await exchange.begin()
            await exchange.send(TOKEN * 3 + DONE)
            await exchange.end()
            assert (await router.ended(id)).HasField("finished")
        assert rig.replica.unfinished == 0

    async def test_a_request_that_ends_while_held_leaves_no_state(
        self, engine: Engine, rig: Rig, router: Router
    ) -> None:
        for id in (1, 2):
            await router.submit(id, BODY | {"n": 3})
        await engine.asked()
        await router.first(2)
        await router.cancel(2)
        await eventually(lambda: rig.replica.unfinished == 1)
        await router.cancel(1)
        await eventually(lambda: rig.replica.unfinished == 0)
        assert len(engine.exchanges) == 1
