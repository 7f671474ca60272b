"""The cost of a candidate, and the highest allowed cost as a replica fills."""

from math import exp, inf, nextafter

import pytest
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.domain.verdict import Reason
from penstock_core.policies.slos_serve.price import (
    FEW_REQUESTS,
    MEMORY_STEEPNESS,
    TIME_STEEPNESS,
    CommittedShares,
    UsualCosts,
    affordable,
    memory,
    too_costly,
    usual_costs,
    work,
    work_left,
)


def job(prompt: int = 100, output: int = 40, value: float = 1.0) -> Job:
    return new_job(Request("a", "tier", 0.0, prompt, 4096, Targets(1.0, 0.1), value), output, False)


def test_work_is_the_token_cost_per_value() -> None:
    assert work(job()) == 140
    assert work(job(value=4.0)) == 35
    begun = advance(job(value=4.0), 100, 8, 0.0)
    assert work(begun) == 35
    assert work_left(job(value=4.0)) == 35
    assert work_left(begun) == (8 + 32) / 4


def test_memory_is_the_tokens_held_over_all_steps_per_value() -> None:
    """An answer's own tokens are held for half of it on average."""
    assert memory(job()) == 40 * (100 + 20)
    assert memory(job(value=4.0)) == 10 * (100 + 20)


def test_usual_costs_are_the_mean_of_enough_requests() -> None:
    jobs = [job(prompt=100 * number) for number in range(1, FEW_REQUESTS + 1)]
    assert usual_costs(jobs[:-1]) == UsualCosts(inf, inf)
    assert usual_costs(jobs) == UsualCosts(
        sum(map(memory, jobs)) / FEW_REQUESTS, sum(map(work, jobs)) / FEW_REQUESTS
    )


@pytest.mark.parametrize(("share", "times"), [(1.0, 1.0), (0.5, exp(1.0)), (0.0, exp(2.0))])
def test_the_allowed_cost_rises_as_less_is_committed(share: float, times: float) -> None:
    def may_cost(cost: float) -> bool:
        return affordable(10.0, lambda _: cost, 2.0, [(job(), share)])

    assert may_cost(10.0 * times)
    assert not may_cost(nextafter(10.0 * times, inf))


def test_every_candidate_has_to_be_cheap_enough() -> None:
    costs = {100: 1.0, 200: 3.0}

    def cost(one: Job) -> float:
        return costs[one.request.prompt_tokens]

    assert affordable(2.0, cost, 1.0, [(job(), 1.0)])
    assert not affordable(2.0, cost, 1.0, [(job(), 1.0), (job(prompt=200), 1.0)])
    assert affordable(2.0, cost, 1.0, [])


def test_the_reason_names_the_resource_that_is_too_expensive_memory_first() -> None:
    one = job()
    cheap, dear = inf, memory(one) / exp(MEMORY_STEEPNESS / 2) * 0.99

    def reason(usual: UsualCosts, *, of_memory: float = 0.5, of_time: float = 0.5) -> Reason | None:
        return too_costly(usual, [CommittedShares(one, of_memory, of_time)])

    assert reason(UsualCosts(cheap, cheap)) is None
    assert reason(UsualCosts(dear, cheap)) is Reason.KV_MEMORY
    assert reason(UsualCosts(dear, cheap), of_memory=0.4) is None
    dear_work = work(one) / exp(TIME_STEEPNESS / 2) * 0.99
    assert reason(UsualCosts(cheap, dear_work)) is Reason.PREFILL_BUDGET
    assert reason(UsualCosts(cheap, dear_work), of_time=0.4) is None
    assert reason(UsualCosts(dear, dear_work)) is Reason.KV_MEMORY
