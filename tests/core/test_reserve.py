"""When batches keep some of their time in reserve."""

import pytest
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.policies.slos_serve.overload_margin import RESERVE, in_reserve
from penstock_core.timing.builtin_models import time_model

SLO = Targets(ttft_s=1.0, tpot_s=0.1)


def job(number: int, targets: Targets, *, best_effort: bool) -> Job:
    return new_job(Request(str(number), "tier", 0.0, 100, 4096, targets), 50, best_effort)


def carrying(*waiting: Job, running: tuple[Job, ...] = ()) -> ReplicaView:
    kv = KvCache(1000, 1000, 16)
    return ReplicaView(5.0, 5.0, running, waiting, kv, Limits(), time_model("llama-3-8b-a100"))


def refused(count: int) -> list[Job]:
    return [job(number, SLO, best_effort=True) for number in range(count)]


@pytest.mark.parametrize(("promised", "reserve"), [(0, RESERVE), (2, RESERVE), (3, 0.0), (40, 0.0)])
def test_there_is_a_reserve_while_more_were_refused_than_promised(promised: int, reserve: float) -> None:
    assert in_reserve(carrying(*refused(3)), promised) == reserve
    running = tuple([advance(one, 100, 1, 4.0) for one in refused(2)])
    assert in_reserve(carrying(*refused(1), running=running), promised) == reserve


def test_nobody_refused_is_no_reserve() -> None:
    assert in_reserve(carrying(), 0) == 0.0
    assert in_reserve(carrying(*[job(i, SLO, best_effort=False) for i in range(9)]), 1) == 0.0


def test_offline_work_asked_for_no_promise() -> None:
    offline = [job(number, Targets(), best_effort=True) for number in range(9)]
    assert in_reserve(carrying(*offline), 2) == 0.0
    assert in_reserve(carrying(*offline, *refused(2)), 2) == 0.0
    assert in_reserve(carrying(*offline, *refused(3)), 2) == RESERVE
