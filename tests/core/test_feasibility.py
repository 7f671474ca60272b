"""Whether candidates fit: a plan, KV blocks, slots and the price."""

from dataclasses import replace
from math import inf
from random import Random

import pytest
from admitted_requests import OPT, admitted, asks, decodes, replica
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, advance
from penstock_core.domain.verdict import Reason
from penstock_core.policies.slos_serve.earliest_admission import earliest_s
from penstock_core.policies.slos_serve.feasibility import (
    Feasible,
    Infeasible,
    feasible,
)
from penstock_core.policies.slos_serve.price import FEW_REQUESTS
from penstock_core.policies.slos_serve.workload import AdmittedSet
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork

from examples import examples


def test_a_feasible_set_has_the_times_of_its_first_tokens() -> None:
    answer = feasible(admitted(replica(busy_s=0.02), []), [asks("a")])
    assert isinstance(answer, Feasible)
    assert answer.first_token_s == {"a": pytest.approx(0.02 + OPT.prefill_seconds(500))}
    assert answer.step_s == pytest.approx(OPT.prefill_seconds(1))


@pytest.mark.parametrize(
    ("view", "there", "new", "reason"),
    [
        pytest.param(replica(slots=3), decodes(3), asks("a"), Reason.DECODE_BUDGET, id="slots"),
        pytest.param(replica(busy_s=0.97), [], asks("a"), Reason.PREFILL_BUDGET, id="no-time-at-all"),
        pytest.param(
            replica(),
            [asks("w", 2500, ttft_s=0.3)],
            asks("a", 2500, ttft_s=0.38),
            Reason.PREFILL_BUDGET,
            id="queue",
        ),
        pytest.param(replica(), [], asks("a", ttft_s=None, output=9), None, id="no-deadline"),
        pytest.param(replica(60), decodes(2), asks("a"), Reason.KV_MEMORY, id="blocks"),
        pytest.param(replica(scale=3.9), decodes(60), asks("a"), Reason.DECODE_BUDGET, id="decodes"),
    ],
)
def test_an_infeasible_set_has_its_reason(
    view: ReplicaView, there: list[Job], new: Job, reason: Reason | None
) -> None:
    answer = feasible(admitted(view, there), [new])
    if reason is None:
        assert isinstance(answer, Feasible)
    else:
        assert isinstance(answer, Infeasible)
        assert answer.reason is reason
        assert 0 < earliest_s(admitted(view, there), [new], answer) < inf


def test_the_memory_price_applies_only_beside_enough_running_requests() -> None:
    costly = asks("a", 1000, 3000)
    few, many = decodes(FEW_REQUESTS - 1), decodes(FEW_REQUESTS)
    assert isinstance(feasible(admitted(replica(400), few), [costly]), Feasible)
    answer = feasible(admitted(replica(400), many), [costly])
    assert isinstance(answer, Infeasible)
    assert answer.reason is Reason.KV_MEMORY


def test_a_long_prompt_behind_a_queue_is_admitted_only_if_it_is_worth_much() -> None:
    """Behind prompts that are nearly due it would wait for most of its own time."""
    queue = [asks(f"w{i}", 400, 20, 0.9) for i in range(16)]
    for value, taken in ((1.0, False), (9.0, True)):
        long = asks("long", 2500, 20, 1.0, value)
        assert isinstance(feasible(admitted(replica(), queue), [long]), Feasible) is taken
    assert isinstance(feasible(admitted(replica(), queue), [asks("short", 400, 20)]), Feasible)


def test_a_long_answer_costs_as_a_long_prompt_does() -> None:
    queue = [asks(f"w{i}", 400, 20, 0.9) for i in range(16)]
    answer = feasible(admitted(replica(), queue), [asks("talks", 400, 2120)])
    assert isinstance(answer, Infeasible)
    assert answer.reason is Reason.PREFILL_BUDGET


def test_draft_tokens_count_in_the_peak() -> None:
    """A decode that drafts holds blocks for tokens that may be thrown away."""
    view = replace(replica(40), speculation=Speculation(9, 0.9))
    grown = [advance(asks("d", 300, 20), 300, 1, 0.0)]
    assert isinstance(feasible(admitted(replica(40), grown), [asks("a", 300, 20)]), Feasible)
    answer = feasible(admitted(view, grown), [asks("a", 300, 20)])
    assert isinstance(answer, Infeasible)
    assert answer.reason is Reason.KV_MEMORY


def rough(busy_s: float = 0.0) -> ReplicaView:
    """One step in fifty takes four times as long."""
    view = replica(busy_s=busy_s)
    return replace(view, model=replace(OPT, slow_chance=0.02, slow_excess=3.0))


def test_a_first_token_needs_a_lead_where_a_slow_step_before_it_is_likely() -> None:
    """Alone it is computed in 44 ms. One batch is slow with two per cent, one of two with four."""
    alone_s = OPT.prefill_seconds(250)
    tight, loose = asks("a", 250, ttft_s=alone_s + 0.1), asks("a", 250, ttft_s=4 * alone_s + 0.1)
    assert isinstance(feasible(admitted(rough(), []), [tight]), Feasible)
    assert isinstance(feasible(admitted(replica(busy_s=0.02), []), [tight]), Feasible)
    assert isinstance(feasible(admitted(rough(busy_s=0.02), []), [loose]), Feasible)
    answer = feasible(admitted(rough(busy_s=0.02), []), [tight])
    assert isinstance(answer, Infeasible)
    assert answer.reason is Reason.PREFILL_BUDGET
    assert isinstance(feasible(admitted(rough(busy_s=0.02), []), [tight], with_lead=False), Feasible)


def test_a_candidate_leaves_the_lead_to_the_prompts_behind_it() -> None:
    """Whether it needs one itself or not; those before it, and those that are late anyway, are left alone."""
    alone_s = OPT.prefill_seconds(250)
    first = asks("first", 250, ttft_s=0.9)
    behind = asks("behind", 250, ttft_s=4 * alone_s + 0.16)
    view = rough(busy_s=0.02)
    assert isinstance(feasible(admitted(view, [behind]), []), Feasible)
    hurried = asks("hurried", 1400, ttft_s=4 * alone_s + 0.15)
    answer = feasible(admitted(view, [behind]), [hurried], with_lead=False)
    assert isinstance(answer, Infeasible)
    assert answer.reason is Reason.PREFILL_BUDGET
    assert isinstance(
        feasible(admitted(view, [asks("before", 250, ttft_s=alone_s + 0.1)]), [first]), Feasible
    )
    assert isinstance(feasible(admitted(view, [asks("late", 250, ttft_s=0.01)]), [first]), Feasible)


def few_requests(random: Random) -> tuple[list[Job], list[Job]]:
    """Admitted requests, too few for a price, and candidates."""
    before = decodes(random.randint(0, FEW_REQUESTS - 1), random.randint(1, 900), random.randint(2, 300))
    new = [
        asks(f"n{i}", random.randint(1, 2500), random.randint(1, 400), random.uniform(0.1, 2.0))
        for i in range(random.randint(1, 4))
    ]
    return before, new


@examples(150)
@given(st.integers(0, 1 << 20))
def test_more_memory_or_slots_never_make_a_request_infeasible(seed: int) -> None:
    random = Random(seed)
    before, new = few_requests(random)
    blocks, slots = random.randint(20, 600), random.randint(1, 8)
    if isinstance(feasible(admitted(replica(blocks, slots=slots), before), new), Feasible):
        for more, at_more in ((random.randint(1, 900), 0), (0, 1)):
            view = replica(blocks + more, slots=slots + at_more)
            assert isinstance(feasible(admitted(view, before), new), Feasible)


@examples(150)
@given(st.integers(0, 1 << 20))
def test_an_engine_that_is_free_sooner_never_makes_a_request_infeasible(seed: int) -> None:
    random = Random(seed)
    _, new = few_requests(random)
    busy_s = random.uniform(0.0, 0.4)
    if isinstance(feasible(admitted(replica(busy_s=busy_s), []), new), Feasible):
        assert isinstance(feasible(admitted(replica(busy_s=busy_s * random.random()), []), new), Feasible)


@examples(150)
@given(st.integers(0, 1 << 20))
def test_a_faster_engine_never_makes_a_request_infeasible(seed: int) -> None:
    random = Random(seed)
    before, new = few_requests(random)
    scale = random.uniform(0.5, 2.0)
    if isinstance(feasible(admitted(replica(scale=scale), before), new), Feasible):
        faster = replica(scale=scale * random.uniform(0.3, 1.0))
        assert isinstance(feasible(admitted(faster, before), new), Feasible)


def true_peak_blocks(view: ReplicaView, answer: Feasible, together: AdmittedSet, random: Random) -> int:
    """Most blocks held while all live as foreseen, and all drafts of a batch are as good as one another.

    Prompts hold their blocks from the beginning. Until its prompt is computed a request brings nothing.
    """
    drafts = max(answer.plan.rule.speculation.values(), default=0)
    starts = [0] * len(together.decodes) + list(answer.plan.batches)
    jobs = [*together.decodes, *together.prompts]
    lives = [[job.request.prompt_tokens + job.generated_tokens, job.output_tokens_left] for job in jobs]
    peak, batch = 0, 0
    while any(left > 0 for _, left in lives):
        batch += 1
        peak = max(peak, sum(view.kv.blocks_for(size + drafts) for size, left in lives if left > 0))
        brings = random.randint(1, 1 + drafts)
        for life, start in zip(lives, starts, strict=True):
            tokens = 0 if batch < start else 1 if batch == start else brings
            life[:] = life[0] + tokens, life[1] - tokens
    return peak


@examples(150)
@given(st.integers(0, 1 << 20))
def test_memory_suffices_for_a_feasible_set_for_any_accepted_drafts(seed: int) -> None:
    random = Random(seed)
    there = decodes(random.randint(1, 3), random.randint(1, 300), random.randint(20, 200))
    new = [asks(f"n{i}", random.randint(200, 2500), random.randint(2, 60), 3.0) for i in range(6)]
    view = replace(replica(random.randint(100, 900)), speculation=Speculation(random.choice((0, 3, 9)), 0.9))
    answer, together = feasible(admitted(view, there), new), admitted(view, [*there, *new])
    if isinstance(answer, Feasible):
        assert true_peak_blocks(view, answer, together, random) <= view.kv.total_blocks


def test_a_prompt_needs_the_time_of_its_own_batch() -> None:
    enough_s = 0.02 + OPT.seconds(BatchWork(500))
    assert isinstance(feasible(admitted(replica(busy_s=0.02), []), [asks("a", ttft_s=enough_s)]), Feasible)
    late = feasible(admitted(replica(busy_s=0.02), []), [asks("a", ttft_s=enough_s - 1e-6)])
    assert isinstance(late, Infeasible)


def test_the_last_block_may_be_used() -> None:
    assert isinstance(feasible(admitted(replica(10), []), [asks("a", 100, 61)]), Feasible)
    assert isinstance(feasible(admitted(replica(9), []), [asks("a", 100, 61)]), Infeasible)


LATER_S = 1024.0


def later(job: Job) -> Job:
    anchor = job.anchor and job.anchor._replace(at_s=job.anchor.at_s + LATER_S)
    request = replace(job.request, arrival_s=job.request.arrival_s + LATER_S)
    return job._replace(request=request, due_s=job.due_s + LATER_S, anchor=anchor)


def test_the_result_does_not_depend_on_the_absolute_time() -> None:
    for seed in range(30):
        random = Random(seed)
        there = decodes(random.randint(0, 3 * FEW_REQUESTS), random.randint(1, 900), random.randint(2, 300))
        new = [
            asks(f"n{i}", random.randint(1, 2500), random.randint(1, 400), random.uniform(0.1, 2.0))
            for i in range(random.randint(1, 3))
        ]
        view = replica(random.randint(100, 600), busy_s=random.uniform(0.0, 0.1))
        at_once = feasible(admitted(view, there), new)
        view = replace(view, now_s=LATER_S, busy_until_s=view.busy_until_s + LATER_S)
        at_last = feasible(admitted(view, [later(job) for job in there]), [later(job) for job in new])
        assert type(at_last) is type(at_once), f"seed {seed}"
        if isinstance(at_once, Infeasible) and isinstance(at_last, Infeasible):
            assert at_last.reason is at_once.reason
            assert at_last.step_s == pytest.approx(at_once.step_s)
            assert at_last.crowded_steps == at_once.crowded_steps
