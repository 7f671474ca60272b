"""When plans have a margin beside long answers."""

import pytest
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.policies.slos_serve.overload_margin import MARGIN, overload_margin
from penstock_core.timing.builtin_models import time_model

SLO = Targets(ttft_s=1.0, tpot_s=0.1)


def job(number: int, targets: Targets, *, best_effort: bool) -> Job:
    return new_job(Request(str(number), "tier", 0.0, 100, 4096, targets), 50, best_effort)


def carrying(*waiting: Job, running: tuple[Job, ...] = ()) -> ReplicaView:
    kv = KvCache(1000, 1000, 16)
    return ReplicaView(5.0, 5.0, running, waiting, kv, Limits(), time_model("llama-3-8b-a100"))


def rejected(count: int) -> list[Job]:
    return [job(number, SLO, best_effort=True) for number in range(count)]


@pytest.mark.parametrize(("admitted", "margin"), [(0, MARGIN), (2, MARGIN), (3, 0.0), (40, 0.0)])
def test_there_is_a_margin_while_more_were_rejected_than_admitted(admitted: int, margin: float) -> None:
    assert overload_margin(carrying(*rejected(3)), admitted) == margin
    running = tuple([advance(one, 100, 1, 4.0) for one in rejected(2)])
    assert overload_margin(carrying(*rejected(1), running=running), admitted) == margin


def test_nobody_rejected_is_no_margin() -> None:
    assert overload_margin(carrying(), 0) == 0.0
    assert overload_margin(carrying(*[job(i, SLO, best_effort=False) for i in range(9)]), 1) == 0.0


def test_offline_work_asked_for_no_slo() -> None:
    offline = [job(number, Targets(), best_effort=True) for number in range(9)]
    assert overload_margin(carrying(*offline), 2) == 0.0
    assert overload_margin(carrying(*offline, *rejected(2)), 2) == 0.0
    assert overload_margin(carrying(*offline, *rejected(3)), 2) == MARGIN
