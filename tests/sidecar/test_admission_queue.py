import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from penstock_core.domain.request_lifecycle import State
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.replica.admission_queue import AdmissionQueue
from penstock_sidecar.requests.replica_request import ReplicaRequest

BOUNDS = replace(Bounds(), decided_together=2, decision_burst_s=1.0, requests=7)


@dataclass
class Candidate:
    """The part of a request that the queue reads."""

    name: str
    state: State = State.DECIDING


class Planner:
    """Decides all requests; each plan takes `plan_s` on its clock."""

    def __init__(self, plan_s: float) -> None:
        self.now_s, self.plan_s = 0.0, plan_s
        self.plans: list[str] = []
        self.breaks = False
        self.queue = AdmissionQueue(self.decide, BOUNDS, lambda: self.now_s)

    def decide(self, new: Sequence[ReplicaRequest]) -> None:
        self.now_s += self.plan_s
        if self.breaks:
            raise ArithmeticError
        self.plans.append("".join(cast(Candidate, one).name for one in new))

    def add(self, *candidates: Candidate) -> None:
        for one in candidates:
            self.queue.add(cast(ReplicaRequest, one))


async def test_a_burst_is_decided_in_groups_and_in_order() -> None:
    planner = Planner(plan_s=0.0)
    planner.add(*map(Candidate, "abcde"))
    assert planner.plans == []
    await asyncio.sleep(0)
    assert planner.plans == ["ab", "cd", "e"]


async def test_a_burst_yields_after_its_turn() -> None:
    planner = Planner(plan_s=0.5)
    planner.add(*map(Candidate, "abcde"))
    await asyncio.sleep(0)
    assert planner.plans == ["ab", "cd"]
    planner.add(Candidate("f"))
    await asyncio.sleep(0)
    assert planner.plans == ["ab", "cd", "ef"]


async def test_a_cancelled_request_is_not_planned_for() -> None:
    planner = Planner(plan_s=0.0)
    planner.add(Candidate("a"), Candidate("b", State.CANCELLED), Candidate("c", State.CANCELLED))
    await asyncio.sleep(0)
    assert planner.plans == ["a"]


async def test_a_planner_that_raises_leaves_no_later_request_waiting() -> None:
    planner = Planner(plan_s=0.0)
    planner.breaks = True
    broken: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    planner.add(*map(Candidate, "abc"))
    await asyncio.sleep(0)
    planner.breaks = False
    await asyncio.sleep(0)
    assert (planner.plans, len(broken)) == (["c"], 1)


async def test_the_queue_has_the_number_of_waiting_requests() -> None:
    planner = Planner(plan_s=0.0)
    planner.add(*map(Candidate, "abcdef"))
    assert len(planner.queue) == 6
