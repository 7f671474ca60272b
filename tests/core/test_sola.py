"""SOLA's published rules on worked examples: monitor, choice of problem, order, workload, cost, memory."""

from dataclasses import replace
from functools import partial
from math import inf
from random import Random

import numpy as np
import pytest
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job, preempted
from penstock_core.domain.slo import Judge, Targets
from penstock_core.policies.sola.cost import Costs, Gammas, Sent, learned
from penstock_core.policies.sola.decode_order import predicted_ratio, worst_first
from penstock_core.policies.sola.iteration import phases, pressure_of, to_spare_s
from penstock_core.policies.sola.kv_admission import startable
from penstock_core.policies.sola.monitor import LatencyGoal, Pressure, latency_ratios, pressure, problem
from penstock_core.policies.sola.policy import Sola, SolaState
from penstock_core.policies.sola.workload import fewest_prompts, in_order, most_tokens
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork, Term, TimeModel, chunk_work
from replica_views import replica_view

MODEL = TimeModel("round", (Term(1e-4, 0.010),))
"""10 ms an iteration, and a tenth of a millisecond a token."""

LONG_CONTEXT = TimeModel("attending", (Term(1e-4, 0.010), Term(5e-5, 0.020)), 1e-6, 1e-7, 0.002)
PLAIN = Costs(MODEL, Gammas())
NOW_S = 10.0


def prompt(
    name: str,
    tokens: int = 200,
    *,
    waited_s: float = 0.1,
    ttft_s: float | None = 1.0,
    done: int = 0,
    output: int = 50,
    best_effort: bool = False,
) -> Job:
    targets = Targets(ttft_s, 0.1) if ttft_s is not None else Targets()
    job = new_job(Request(name, "chat", NOW_S - waited_s, tokens, 4096, targets), output, best_effort)
    return advance(job, done, 0, NOW_S) if done else job


def decode(
    name: str,
    *,
    since_s: float = 0.5,
    tokens: int = 10,
    tpot_s: float | None = 0.1,
    judge: Judge = Judge.MEAN,
    context: int = 100,
    output: int = 50,
    best_effort: bool = False,
) -> Job:
    """A decode whose first token came out `since_s` ago, as number 1 of `tokens` so far."""
    targets = Targets(1.0, tpot_s, None, judge)
    job = new_job(Request(name, "chat", NOW_S - 5, context, 4096, targets), output, best_effort)
    job = advance(job, context, 1, NOW_S - since_s)
    for _ in range(tokens - 1):
        job = advance(job, 1, 1, NOW_S - since_s)
    return job


replica = partial(replica_view, model=MODEL, now_s=NOW_S)


def step_of(view: ReplicaView, policy: Sola | None = None) -> Step:
    policy = policy or Sola(patience=1.0)
    return policy.step(view, policy.start())[0]


# Monitor


def test_a_waiting_request_s_latency_is_its_wait_over_its_own_target() -> None:
    assert latency_ratios([prompt("a", waited_s=0.25, ttft_s=1.0)], NOW_S)[0] == pytest.approx(0.25)
    assert latency_ratios([prompt("a", waited_s=3.0, ttft_s=2.0)], NOW_S)[0] == pytest.approx(1.5)
    assert latency_ratios([prompt("a", ttft_s=None)], NOW_S)[0] == 0.0


def test_a_decode_s_latency_is_its_tpot_with_the_token_that_it_waits_for() -> None:
    assert latency_ratios([decode("a", since_s=0.5, tokens=10)], NOW_S)[0] == pytest.approx(0.5 / (10 * 0.1))
    assert latency_ratios([decode("a", since_s=0.3, tokens=1)], NOW_S)[0] == pytest.approx(3.0)
    assert latency_ratios([decode("a", tpot_s=None)], NOW_S)[0] == 0.0


@pytest.mark.parametrize(
    ("judge", "ratio"),
    [(Judge.MEAN, 0.8 / (12 * 0.1)), (Judge.WINDOW, 0.06 / (2 * 0.1)), (Judge.MAX, 0.02 / 0.1)],
)
def test_the_latency_restarts_with_the_judgement(judge: Judge, ratio: float) -> None:
    """Twelve tokens: the first 0.8 s ago, the eleventh, where a window begins, 0.06 s, the last 0.02 s."""
    job = decode("a", since_s=0.8, tokens=10, judge=judge)
    job = advance(job, 1, 1, NOW_S - 0.06)
    job = advance(job, 1, 1, NOW_S - 0.02)
    ends = {Judge.MEAN: 12, Judge.WINDOW: 2, Judge.MAX: 1}
    assert job.anchor is not None
    assert job.generated_tokens + 1 - job.anchor.tokens == ends[judge]
    assert latency_ratios([job], NOW_S)[0] == pytest.approx(ratio)


def test_a_preempted_request_counts_by_its_tpot_and_best_effort_does_not_count() -> None:
    resumed = preempted(decode("a", since_s=0.9, tokens=10))
    offline = prompt("b", waited_s=50, best_effort=True)
    view = replica([decode("c", since_s=0.1, tokens=10)], [resumed, prompt("d", waited_s=0.3), offline])
    state = pressure_of(phases(view, aging_s=30.0), NOW_S)
    assert list(state) == pytest.approx([0.3, 0.9, False])


# Table 2

TABLE_2 = {
    "1 > tpot > ttft": ([0.3], [0.6], LatencyGoal.TPOT),
    "tpot > 1 > ttft": ([0.9], [1.4], LatencyGoal.TPOT),
    "1 > ttft > tpot": ([0.6], [0.3], LatencyGoal.TTFT),
    "ttft > 1 > tpot": ([1.4], [0.9], LatencyGoal.TTFT),
    "both broken, tpot loosened to 0.9 and ttft to 0.8": ([0.8, 5.0], [0.9, 1.2], LatencyGoal.TPOT),
    "both broken, ttft loosened to 0.8 and tpot to 0.2": ([0.8, 1.1], [0.2, 9.0], LatencyGoal.TTFT),
    "both broken, no request left that meets ttft": ([1.2, 5.0], [0.9, 9.0], LatencyGoal.TTFT),
    "both broken, no request left that meets either": ([1.2, 5.0], [7.0, 9.0], LatencyGoal.TPOT),
    "no request has a target": ([0.0], [0.0], LatencyGoal.TTFT),
    "no requests": ([], [], LatencyGoal.TTFT),
}


@pytest.mark.parametrize("row", TABLE_2)
def test_the_problem_is_that_of_the_papers_table(row: str) -> None:
    ttft, tpot, chosen = TABLE_2[row]
    state = pressure(ttft, tpot)
    assert problem([state]) is chosen
    assert state.loosened == row.startswith("both")


def test_a_latency_that_just_meets_its_target_is_no_violation() -> None:
    assert pressure([1.0], [2.0]) == Pressure(1.0, 2.0)
    assert pressure([2.0], [1.0]) == Pressure(2.0, 1.0)
    assert pressure([1.0, 5.0], [0.5, 1.0, 2.0]) == Pressure(1.0, 1.0, loosened=True)


def test_the_choice_is_smoothed_over_the_window() -> None:
    calm, sudden = Pressure(0.2, 0.3), Pressure(0.9, 0.4)
    assert problem([calm, calm]) is LatencyGoal.TPOT
    assert problem([calm, sudden, calm]) is LatencyGoal.TTFT
    policy = Sola(window=2)
    memory = SolaState(window=(sudden, calm))
    assert policy.step(replica([], []), memory)[1].window == (calm, Pressure(0.0, 0.0))


# Order


def test_prompts_are_ordered_by_predicted_ttft_over_target() -> None:
    short, long = prompt("short", 100, waited_s=0.30), prompt("long", 3000, waited_s=0.05)
    patient = prompt("patient", 100, waited_s=1.0, ttft_s=5.0)
    order = in_order([short, long, patient], NOW_S, PLAIN)
    assert [job.request.id for job in order.jobs] == ["long", "short", "patient"]
    assert order.slack_s.tolist() == pytest.approx([1 - 0.05 - 0.31, 1 - 0.30 - 0.02, 5 - 1 - 0.02])


def test_late_prompts_do_not_count_if_loosened_and_a_resumed_one_is_ordered_by_tpot() -> None:
    late, resumed = prompt("late", waited_s=1.5), preempted(decode("resumed", since_s=2.0, tokens=10))
    order = in_order([prompt("a"), late, resumed], NOW_S, PLAIN, loosened=True)
    assert [job.request.id for job in order.jobs] == ["resumed", "late", "a"]
    assert [slack == inf for slack in order.slack_s] == [True, True, False]
    assert not np.isinf(in_order([late], NOW_S, PLAIN).slack_s).any()


def test_a_prompt_that_is_due_now_is_not_late_yet() -> None:
    order = in_order([prompt("now", waited_s=1.0, ttft_s=1.0)], NOW_S, PLAIN, loosened=True)
    assert order.slack_s.tolist() == pytest.approx([-0.03])


def test_late_decodes_leave_no_time_unless_the_constraint_is_loosened() -> None:
    late, in_time = decode("late", since_s=1.9), decode("in time", since_s=0.2)
    assert to_spare_s([late, in_time], NOW_S, loosened=False) == pytest.approx(-0.9)
    assert to_spare_s([late, in_time], NOW_S, loosened=True) == pytest.approx(0.8)
    assert to_spare_s([late], NOW_S, loosened=True) == inf


@pytest.mark.parametrize(
    ("judge", "left_tokens"), [(Judge.MEAN, 40), (Judge.WINDOW, 6), (Judge.MAX, 1)], ids=str
)
def test_a_decode_s_predicted_tpot_is_at_the_end_of_its_window(judge: Judge, left_tokens: int) -> None:
    job = decode("a", since_s=0.6, tokens=1, output=45, judge=judge)
    for _ in range(4 if judge is not Judge.MAX else 0):
        job = advance(job, 1, 1, NOW_S)
    out_tokens = 4 if judge is not Judge.MAX else 0
    expected = (0.6 + 0.02 * left_tokens) / (out_tokens + left_tokens) / 0.1
    assert predicted_ratio(job, NOW_S, decode_s=0.02) == pytest.approx(expected)


def test_decodes_are_ordered_by_predicted_tpot_and_those_without_a_target_last() -> None:
    behind, ahead = decode("behind", since_s=1.2, tokens=10), decode("ahead", since_s=0.2, tokens=10)
    free, tight = decode("free", tpot_s=None), decode("tight", since_s=0.2, tokens=10, tpot_s=0.02)
    order = worst_first([free, ahead, behind, tight], NOW_S, decode_s=0.01)
    assert [job.request.id for job in order] == ["tight", "behind", "ahead", "free"]


# Workload


def random_prompts(random: Random, count: int) -> list[Job]:
    return [
        prompt(
            f"p{i}",
            random.randint(2, 900),
            waited_s=random.uniform(0, 1.2),
            ttft_s=random.choice((0.5, 1.0, 3.0)),
            done=random.choice((0, 0, 1)),
        )
        for i in range(count)
    ]


def test_prompts_cost_the_models_time_for_prefill_alone() -> None:
    model = replace(MODEL, scale=1.2, decode_scale=0.7, prefill_scale=1.5, mixed_scale=1.3)
    cost_s = Costs(model, Gammas()).prefill_s(np.array([600]), np.array([180_000.0]))
    assert cost_s[0] == pytest.approx(model.seconds(BatchWork(600, 0, 180_000.0)))


def prefill_s(costs: Costs, jobs: list[Job], tokens: int) -> float:
    """C_p of the first so many tokens of these prompts; past their end tokens have no attention."""
    work, left = 0.0, tokens
    for job in jobs:
        part = min(job.pending_tokens, left)
        work += chunk_work(part, job.computed_tokens) if part else 0.0
        left -= part
    return costs.gammas.prefill * costs.model.seconds(BatchWork(tokens, 0, work))


@pytest.mark.parametrize("seed", range(20))
def test_equation_1_is_solved_as_by_trying_every_number_of_tiles(seed: int) -> None:
    random = Random(seed)
    costs = Costs(random.choice((MODEL, LONG_CONTEXT)), Gammas(prefill=random.choice((0.7, 1.0, 1.4))))
    order = in_order(random_prompts(random, random.randint(0, 8)), NOW_S, costs)
    for limit_s in (0.0, 0.02, random.uniform(0.02, 0.5), inf):
        sizes = range(128, 2000 + 1, 128)
        fitting = [k for k in sizes if prefill_s(costs, list(order.jobs), k) <= limit_s]
        assert most_tokens(order, costs, limit_s, 2000) == max(fitting, default=0)


def test_a_batch_fits_up_to_exactly_the_available_time() -> None:
    order = in_order([prompt("a", 900)], NOW_S, PLAIN)
    for tiles in (1, 2, 7):
        limit_s = float(PLAIN.prefill_s(np.array([128 * tiles]), np.array([0.0]))[0])
        assert most_tokens(order, PLAIN, limit_s, 2000) == 128 * tiles
        assert most_tokens(order, PLAIN, limit_s - 1e-9, 2000) == 128 * (tiles - 1)
    one = in_order([prompt("a")], NOW_S, PLAIN)
    decodes = BatchWork(30, 6000)
    just = one._replace(slack_s=np.array([PLAIN.decode_s(decodes)]))
    assert fewest_prompts(just, PLAIN, decodes) == 0
    assert fewest_prompts(just._replace(slack_s=just.slack_s - 1e-9), PLAIN, decodes) == 1


def test_an_engine_whose_batches_are_shorter_than_a_tile_still_prefills() -> None:
    assert most_tokens(in_order([prompt("a")], NOW_S, PLAIN), PLAIN, inf, 64) == 64


@pytest.mark.parametrize("seed", range(20))
def test_equation_2_is_solved_as_by_trying_every_number_of_prompts(seed: int) -> None:
    random = Random(seed)
    gammas = Gammas(decode=random.choice((0.8, 1.0)), mixed=random.choice((0.6, 1.0)))
    costs = Costs(random.choice((MODEL, LONG_CONTEXT)), gammas)
    order = in_order(random_prompts(random, random.randint(0, 9)), NOW_S, costs)
    decodes = BatchWork(30, 6000)

    def others_can_wait(n: int) -> bool:
        first = list(order.jobs[:n])
        tokens = sum(job.pending_tokens for job in first)
        work = sum(chunk_work(job.pending_tokens, job.computed_tokens) for job in first)
        both_s = costs.model.seconds(BatchWork(tokens, 0, work)) + costs.model.seconds(decodes)
        batch_s = gammas.mixed * both_s if n else gammas.decode * costs.model.seconds(decodes)
        return all(
            NOW_S - job.request.arrival_s + batch_s + prefill_s(costs, [job], job.pending_tokens)
            <= (job.request.targets.ttft_s or 0.0) + 1e-12
            for job in order.jobs[n:]
        )

    fewest = next(n for n in range(len(order.jobs) + 1) if others_can_wait(n))
    assert fewest_prompts(order, costs, decodes) == fewest


# Cost model


def test_gamma_follows_measured_over_predicted_by_kind_of_iteration() -> None:
    here = replica([decode("a")], [])
    last = Sent(NOW_S - 0.03, "decode", 0.02, {"a": 1})
    assert learned(Gammas(), last, here) == pytest.approx((1, 0.9 * 1 + 0.1 * 1.5, 1))
    assert learned(Gammas(), last._replace(kind="mixed"), here).mixed == pytest.approx(1.05)
    assert learned(Gammas(decode=1.2), last, here).decode == pytest.approx(0.9 * 1.2 + 0.1 * 1.5)


def test_gamma_does_not_learn_from_a_pause_and_learns_little_from_a_stall() -> None:
    last = Sent(NOW_S - 8.0, "decode", 0.02, {"a": 1})
    assert learned(Gammas(), last, replica([decode("b")], [])) == Gammas()
    assert learned(Gammas(), None, replica([decode("a")], [])) == Gammas()
    assert learned(Gammas(), last, replica([decode("a")], [])).decode == pytest.approx(1.1)


def test_a_mixed_iteration_is_predicted_as_the_sum_and_gamma_learns_the_batching() -> None:
    policy, memory = Sola(), Sola().start()
    running, waiting = [decode("a", since_s=0.2)], [prompt("b", waited_s=0.9)]
    step, memory = policy.step(replica(running, waiting), memory)
    assert step.tokens == {"b": 200, "a": 1}
    assert memory.last is not None
    assert memory.last._replace(predicted_s=0.0) == Sent(NOW_S, "mixed", 0.0, step.tokens)
    assert memory.last.predicted_s == pytest.approx(0.030 + 0.0101)
    later = replica(running, [], now_s=NOW_S + step.duration_s)
    assert policy.step(later, memory)[1].gammas.mixed == pytest.approx(0.9 + 0.1 * 0.0301 / 0.0401)


def test_prompts_and_decodes_of_a_step_are_predicted_separately() -> None:
    """A chunk of a single token passes for a decode, a prompt of two does not."""
    running = [decode("d", context=300, since_s=0.2), prompt("p", 40, done=38, waited_s=0.95)]
    last = Sola().step(replica(running, [], model=LONG_CONTEXT), SolaState())[1].last
    assert last is not None
    assert (dict(last.jobs), last.kind) == ({"p": 2, "d": 1}, "mixed")
    prompts_s = LONG_CONTEXT.seconds(BatchWork(2, 0, chunk_work(2, 38)))
    context = running[0].computed_tokens + 1
    assert last.predicted_s == pytest.approx(
        prompts_s + LONG_CONTEXT.seconds(BatchWork(1, context)), abs=1e-12
    )


@pytest.mark.parametrize(
    ("running", "waiting", "kind"),
    [([decode("a")], [], "decode"), ([], [prompt("b")], "prefill"), ([], [], None)],
    ids=["decodes", "prompts", "nothing"],
)
def test_kinds_of_iteration_are_distinguished(
    running: list[Job], waiting: list[Job], kind: str | None
) -> None:
    last = Sola().step(replica(running, waiting), SolaState())[1].last
    assert (last.kind if last else None) == kind


# Memory


def test_requests_that_end_at_different_times_may_start_together() -> None:
    """Ten blocks now and twenty at the end beside twenty that end with the next token: 31, not 40."""
    ending = decode("ending", context=303, tokens=1, output=2)
    growing = prompt("growing", 160, output=161)
    assert startable(replica([ending], [], free_blocks=12), [growing], 30.0) == [0]
    assert startable(replica([ending], [], free_blocks=9), [growing], 30.0) == []


def test_a_request_that_does_not_fit_is_skipped_until_it_has_waited_long() -> None:
    large, small = prompt("large", 800, waited_s=5), prompt("small", 30, output=2)
    view = replica([decode("a", context=159, output=1000)], [], free_blocks=55)
    assert startable(view, [large, small], 30.0) == [1]
    assert startable(view, [large, small], 4.0) == []
    offline = prompt("offline", 800, waited_s=50, best_effort=True)
    assert startable(view, [offline, small], 30.0) == [1]


def test_a_prompt_in_progress_continues_and_those_beyond_the_batch_are_not_examined() -> None:
    under_way, huge = prompt("under way", 800, done=16), prompt("huge", 100_000)
    view = replica([under_way], [], free_blocks=1, limits=Limits(batch_tokens=784))
    assert startable(view, [under_way, huge], 30.0) == [0, 1]
    assert startable(view, [huge, under_way], 30.0) == [1]


def test_prompts_are_examined_until_the_batch_is_full() -> None:
    """The second is in reach and does not fit beside the first; the third is not examined."""
    prompts = [prompt("a", 400, output=2), prompt("b", 400, output=2), prompt("c", 400, output=2)]
    assert startable(replica([], [], free_blocks=30, limits=Limits(batch_tokens=401)), prompts, 30.0) == [
        0,
        2,
    ]
    assert startable(replica([], [], free_blocks=30, limits=Limits(batch_tokens=400)), prompts, 30.0) == [
        0,
        1,
        2,
    ]
    begun = prompt("a", 400, done=1, output=2)
    assert startable(replica([begun], [], free_blocks=0), [begun], 30.0) == [0]


@pytest.mark.parametrize(("waited_s", "may"), [(4.0, [1]), (4.01, [])])
def test_a_request_is_overtaken_until_it_has_waited_its_longest_wait(waited_s: float, may: list[int]) -> None:
    large, small = prompt("large", 800, waited_s=waited_s), prompt("small", 30, output=2)
    view = replica([decode("a", context=159, output=1000)], [], free_blocks=55)
    assert startable(view, [large, small], 4.0) == may


def test_an_answer_predicted_to_exceed_the_cache_may_start_alone() -> None:
    endless = prompt("endless", 100, output=4000)
    assert startable(replica([], [], free_blocks=20), [endless], 30.0) == [0]
    assert startable(replica([decode("a", output=5000)], [], free_blocks=20), [endless], 30.0) == []


# Whole steps


def test_ttft_first_serves_prompts_first_and_fills_tiles_with_decodes() -> None:
    """The decode may wait 64 ms: 540 tokens of prefill, so four tiles."""
    view = replica([decode("d", since_s=0.936)], [prompt("a", 700, waited_s=0.99)])
    assert step_of(view).tokens == {"a": 512}
    view = replica([decode("d", since_s=0.936)], [prompt("a", 500, waited_s=0.99)])
    assert list(step_of(view).tokens.items()) == [("a", 500), ("d", 1)]


def test_if_the_tiles_do_not_hold_all_decodes_the_worst_are_served() -> None:
    decodes = [decode(f"d{i:03}", since_s=0.3 + i / 400) for i in range(100)]
    step = step_of(replica(decodes, [prompt("a", 400, waited_s=0.99)], limits=Limits(batch_tokens=450)))
    assert step.tokens["a"] == 384
    assert len(step.tokens) == 1
    step = step_of(replica(decodes, [prompt("a", 360, waited_s=0.99)], limits=Limits(batch_tokens=450)))
    assert list(step.tokens)[1:] == [f"d{i:03}" for i in range(99, 75, -1)]


def test_without_a_free_tile_decodes_run_alone() -> None:
    view = replica([decode("d", since_s=0.99)], [prompt("a", waited_s=1.5)])
    assert step_of(view).tokens == {"d": 1}


def test_late_decodes_do_not_delay_prompts_if_loosened() -> None:
    late, in_time = decode("late", since_s=1.9), decode("in time", since_s=0.2)
    view = replica([late, in_time], [prompt("a", waited_s=0.8), prompt("b", waited_s=1.5)])
    assert list(step_of(view).tokens.items()) == [("b", 200), ("a", 200), ("late", 1), ("in time", 1)]


def test_tpot_first_starts_only_urgent_prompts() -> None:
    """b can wait for d and a and still be in time; a cannot wait for d."""
    running = [decode("d", since_s=0.99, tokens=10)]
    waiting = [prompt("a", waited_s=0.96), prompt("b", waited_s=0.90)]
    assert step_of(replica(running, waiting)).tokens == {"d": 1, "a": 200}
    hasty = Sola(patience=0.5)
    assert step_of(replica(running, waiting), hasty).tokens == {"d": 1, "a": 200, "b": 200}


def test_a_long_prompt_is_cut_at_the_end_of_the_engines_batch() -> None:
    view = replica([], [prompt("a", 5000)], limits=Limits(batch_tokens=1024))
    assert step_of(view).tokens == {"a": 1024}


def test_decodes_draft_as_many_tokens_as_the_drafter_is_set_to() -> None:
    view = replica([decode("d")], [], speculation=Speculation(3, 0.7))
    assert step_of(view).drafts == {"d": 3}


def test_best_effort_and_requests_without_a_target_take_the_remaining_budget() -> None:
    offline, whenever = prompt("offline", best_effort=True), prompt("whenever", ttft_s=None)
    pressed = [decode("d", since_s=0.99)]
    assert step_of(replica(pressed, [offline, whenever])).tokens == {"d": 1}
    relaxed = [decode("d", since_s=0.5)]
    assert step_of(replica(relaxed, [offline, whenever])).tokens == {"d": 1, "offline": 200, "whenever": 200}


def test_prompts_fill_a_batch_to_its_last_token() -> None:
    waiting = [prompt("a", 200, waited_s=0.2), prompt("b", 200)]
    assert step_of(replica([], waiting, limits=Limits(batch_tokens=384))).tokens == {"a": 200, "b": 184}
    pressed = [decode("d", since_s=0.99, tokens=10)]
    late = [prompt("a", 200, waited_s=0.98), prompt("b", 200, waited_s=0.97)]
    assert step_of(replica(pressed, late, limits=Limits(batch_tokens=202))).tokens == {
        "d": 1,
        "a": 200,
        "b": 1,
    }


def test_a_prompt_leaves_the_blocks_that_decodes_begin_with_their_next_token() -> None:
    def first(context: int) -> list[str]:
        running = [decode("d", since_s=0.05, tokens=1, context=context)]
        return list(
            step_of(replica(running, [prompt("a", 160, waited_s=0.99, output=1)], free_blocks=10)).tokens
        )

    assert first(15) == ["a", "d"]
    assert first(16) == ["d"]


def test_if_all_decodes_fit_they_keep_their_order() -> None:
    decodes = [decode("calm", since_s=0.1), decode("pressed", since_s=0.95), decode("calmer", since_s=0.05)]
    assert list(step_of(replica(decodes, [], limits=Limits(batch_tokens=3))).tokens) == [
        "calm",
        "pressed",
        "calmer",
    ]
    assert list(step_of(replica(decodes, [], limits=Limits(batch_tokens=2))).tokens) == ["pressed", "calm"]


def test_a_waiting_request_has_no_blocks_to_free_and_a_begun_one_has() -> None:
    running = [decode("d", context=160, tokens=1), decode("e", context=160, tokens=1)]
    step = step_of(replica(running, [prompt("w")], free_blocks=0))
    assert (step.tokens, step.preempt) == ({"d": 1}, ("e",))
    begun = [decode("d", context=160, tokens=1), prompt("p", 100, done=1)]
    step = step_of(replica(begun, [], free_blocks=0))
    assert (step.tokens, step.preempt) == ({"d": 1}, ("p",))


def test_best_effort_is_preempted_for_its_memory() -> None:
    offline = decode("offline", context=320, best_effort=True)
    step = step_of(replica([offline], [prompt("a", 300)], free_blocks=5))
    assert (step.tokens, step.preempt) == ({"a": 300}, ("offline",))


def test_the_oldest_best_effort_is_served_after_a_long_wait() -> None:
    old = prompt("old", waited_s=31.0, best_effort=True)
    running = [decode("d", since_s=0.99)]
    waiting = [old, prompt("a", waited_s=0.2)]
    assert list(step_of(replica(running, waiting)).tokens) == ["d", "old"]


def test_a_prompt_in_progress_takes_the_free_blocks() -> None:
    under_way = prompt("a", 800, done=160)
    assert step_of(replica([under_way], [], free_blocks=3)).tokens == {"a": 48}
    assert step_of(replica([prompt("a", 800, done=159)], [], free_blocks=0)).tokens == {"a": 1}


def test_half_computed_prompts_that_fill_the_cache_do_not_stop_the_engine() -> None:
    first, second = prompt("first", 800, done=160), prompt("second", 800, done=640)
    step = step_of(replica([first, second], [], free_blocks=0))
    assert (step.tokens, step.preempt) == ({"first": 640}, ("second",))


def test_a_prompt_in_progress_is_preempted_for_a_decode_that_needs_a_block() -> None:
    under_way = prompt("a", 800, done=160, waited_s=0.96)
    view = replica([decode("d", context=160, tokens=1), under_way], [], free_blocks=0)
    step = step_of(view)
    assert (step.tokens, step.preempt) == ({"d": 1}, ("a",))


def test_without_blocks_or_tokens_the_worst_decode_preempts_the_last() -> None:
    decodes = [decode("a", context=144, tokens=1, since_s=0.02), decode("b", context=144, tokens=1)]
    step = step_of(replica(decodes, [], free_blocks=0, limits=Limits(batch_tokens=1)))
    assert (step.tokens, step.preempt) == ({"b": 1}, ("a",))


def test_a_decode_preempted_for_a_worse_one_is_not_served() -> None:
    decodes = [decode("a", context=144, tokens=1, since_s=0.02), decode("b", context=144, tokens=1)]
    limits, drafting = Limits(batch_tokens=3), Speculation(1, 0.7)
    step = step_of(replica(decodes, [], free_blocks=0, limits=limits, speculation=drafting))
    assert (step.tokens, step.drafts, step.preempt) == ({"b": 1}, {"b": 1}, ("a",))


def test_a_request_larger_than_the_cache_blocks_no_other() -> None:
    impossible, small = prompt("impossible", 900, waited_s=90), prompt("small", 100)
    assert step_of(replica([], [impossible, small], free_blocks=20)).tokens == {"small": 100}


def test_all_requests_are_admitted() -> None:
    verdicts = Sola().admit(replica([], []), [prompt("a"), prompt("b", best_effort=True)])
    assert [type(verdict).__name__ for verdict in verdicts] == ["Admitted", "BestEffort"]
