"""When a rejected candidate might fit."""

import pytest
from admitted_requests import OPT, admitted, asks, decodes, replica
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.policies.slos_serve import earliest_admission
from penstock_core.policies.slos_serve.feasibility import Feasible, Infeasible, feasible
from penstock_core.timing.time_model import BatchWork


def earliest_s(view: ReplicaView, there: list[Job], *new: Job) -> float:
    answer = feasible(admitted(view, there), new)
    assert isinstance(answer, Infeasible)
    return earliest_admission.earliest_s(admitted(view, there), new, answer)


def test_a_slot_is_free_once_the_shortest_has_ended() -> None:
    three, step_s = decodes(3), OPT.seconds(BatchWork(4, 3 * 301 + 500))
    assert isinstance(feasible(admitted(replica(slots=4), three), [asks("a")]), Feasible)
    for output in (10, 99):  # how long the candidate itself would take says nothing
        assert earliest_s(replica(slots=3), three, asks("a", output=output)) == pytest.approx(59 * step_s)


def test_a_prompt_can_start_once_those_before_it_are_computed() -> None:
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
