"""Requests of a replica, sorted for a decision."""

from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.policies.slos_serve.price import FEW_REQUESTS, UsualCosts, usual_costs
from penstock_core.policies.slos_serve.workload import Workload
from penstock_core.timing.builtin_models import time_model

SLO = Targets(ttft_s=1.0, tpot_s=0.1)


def job(name: str, targets: Targets = SLO, *, best_effort: bool = False, at_s: float = 0.0) -> Job:
    return new_job(Request(name, "tier", at_s, 100, 4096, targets), 50, best_effort)


def decoding(one: Job) -> Job:
    return advance(one, 100, 1, 4.0)


def workload_of(*waiting: Job, running: tuple[Job, ...] = ()) -> Workload:
    kv = KvCache(1000, 1000, 16)
    view = ReplicaView(31.0, 31.0, running, waiting, kv, Limits(), time_model("llama-3-8b-a100"))
    return Workload.of(view, 30.0)


def test_decodes_prompts_by_deadline_and_best_effort_are_separate() -> None:
    late, soon, offline = job("late", at_s=9.0), job("soon", at_s=8.0), job("o", best_effort=True, at_s=9.0)
    begun, running = advance(job("begun", at_s=8.5), 50, 0, 9.0), decoding(job("d"))
    here = workload_of(late, offline, soon, running=(begun, running))
    assert (here.admitted.decodes, here.admitted.prompts) == ([running], [soon, begun, late])
    assert (here.best_effort, here.protecting) == ([offline], None)


def test_rejected_requests_count_running_or_not_and_offline_work_does_not() -> None:
    rejected = [job(f"r{i}", best_effort=True) for i in range(3)]
    offline = [job(f"o{i}", Targets(), best_effort=True) for i in range(9)]
    assert workload_of().admitted.rejected == 0
    assert workload_of(*[job(f"{i}") for i in range(9)]).admitted.rejected == 0
    assert workload_of(*offline).admitted.rejected == 0
    assert workload_of(*offline, *rejected[:2], running=(decoding(rejected[2]),)).admitted.rejected == 3
    assert workload_of(*offline, *rejected[:2]).admitted.rejected == 2


def test_the_protected_request_counts_as_admitted_and_not_as_best_effort() -> None:
    old, young = job("old", best_effort=True), job("young", best_effort=True, at_s=9.0)
    prompt, decode = job("p", at_s=9.0), decoding(job("d"))
    here = workload_of(old, young, prompt, running=(decode,))
    together = here.protecting
    assert here.admitted.prompts == [prompt]
    assert together is not None
    assert [one.request.id for one in together.admitted.prompts] == ["old", "p"]
    assert (together.admitted.decodes, together.admitted.rejected) == ([decode], here.admitted.rejected)
    assert together.best_effort == [young]
    running = workload_of(young, running=(decoding(old), decode)).protecting
    assert running is not None
    assert [one.request.id for one in running.admitted.decodes] == ["d", "old"]


def test_usual_costs_need_a_few_requests() -> None:
    few = [job(f"{i}") for i in range(FEW_REQUESTS)]
    assert workload_of(*few[1:]).admitted.usual == UsualCosts(float("inf"), float("inf"))
    assert workload_of(*few).admitted.usual == usual_costs(few) == UsualCosts(50 * 125.0, 150.0)
