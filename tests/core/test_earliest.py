"""When a rejected candidate might fit."""

from dataclasses import replace

import pytest
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, deadline_order, new_job
from penstock_core.domain.slo import Targets
from penstock_core.policies.slos_serve import earliest
from penstock_core.policies.slos_serve.feasibility import Feasible, Infeasible, feasible
from penstock_core.policies.slos_serve.workload import AdmittedSet
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.time_model import BatchWork

OPT = time_model("slos-serve-opt-6.7b-a100")


def asks(
    name: str, prompt: int = 500, output: int = 50, ttft_s: float | None = 1.0, value: float = 1.0
) -> Job:
    request = Request(name, "tier", 0.0, prompt, 4096, Targets(ttft_s, 0.1), value)
    return new_job(request, output, False)


def decodes(count: int, prompt: int = 300, output: int = 60) -> list[Job]:
    return [advance(asks(f"d{i}", prompt, output), prompt, 1, 0.0) for i in range(count)]


def admitted(view: ReplicaView, jobs: list[Job]) -> AdmittedSet:
    prompts = sorted([job for job in jobs if not job.decoding], key=deadline_order)
    return AdmittedSet(view, [job for job in jobs if job.decoding], prompts)


def replica(blocks: int = 5000, *, slots: int = 256, scale: float = 1.0, busy_s: float = 0.0) -> ReplicaView:
    kv = KvCache(blocks, blocks, 16)
    return ReplicaView(0.0, busy_s, (), (), kv, Limits(8192, slots), replace(OPT, scale=scale))


def earliest_s(view: ReplicaView, there: list[Job], *new: Job) -> float:
    answer = feasible(admitted(view, there), new)
    assert isinstance(answer, Infeasible)
    return earliest.earliest_s(admitted(view, there), new, answer)


def test_a_slot_is_free_once_the_shortest_has_ended() -> None:
    three, step_s = decodes(3), OPT.seconds(BatchWork(4, 3 * 301 + 500))
    assert isinstance(feasible(admitted(replica(slots=4), three), [asks("a")]), Feasible)
    assert earliest_s(replica(slots=3), three, asks("a", output=50)) == pytest.approx(50 * step_s)
    assert earliest_s(replica(slots=3), three, asks("a", output=99)) == pytest.approx(59 * step_s)


def test_time_for_a_prompt_is_there_once_those_before_it_are_computed() -> None:
    late, there = asks("a"), [*decodes(2), asks("w", 1000)]
    busy_s = 1.5 + OPT.seconds(BatchWork(1500 + 2))
    assert earliest_s(replica(busy_s=1.5), there, late) == pytest.approx(busy_s - 1.0)
    pair = [asks("b", ttft_s=0.5), late]
    assert earliest_s(replica(busy_s=1.5), there, *pair) == pytest.approx(
        1.5 + OPT.seconds(BatchWork(2000 + 2)) - 0.5
    )


def test_the_earliest_retry_is_after_a_step() -> None:
    assert earliest_s(replica(busy_s=0.96), [], asks("a")) == pytest.approx(OPT.seconds(BatchWork(1, 500)))


def test_memory_is_free_once_the_peak_is_over() -> None:
    """The candidate starts in the first batch and holds its blocks for its fifty tokens and the delay."""
    step_s = OPT.seconds(BatchWork(3, 2 * 301 + 500))
    assert earliest_s(replica(60), decodes(2), asks("a")) == pytest.approx(51 * step_s)
