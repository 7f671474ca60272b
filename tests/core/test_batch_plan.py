"""Batch plans: the future, batch by batch."""

from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.compilation.jit import interpreted
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, deadline_order, new_job, preempted
from penstock_core.domain.slo import Judge, Targets
from penstock_core.domain.token_window import WINDOW_TOKENS
from penstock_core.policies.slos_serve import batch_plan
from penstock_core.policies.slos_serve.batch_formation import form_batch
from penstock_core.policies.slos_serve.batch_plan import (
    LENGTHS,
    MARGIN,
    BatchingRule,
    BatchPlan,
    FirstBatch,
    InitialState,
    best_plan,
    plan,
    rules,
)
from penstock_core.policies.slos_serve.kernel import MOST_BATCHES, Prompts, Rows, Rule, simulate
from penstock_core.policies.slos_serve.speculation import NO_SPECULATION
from penstock_core.policies.slos_serve.workload import AdmittedSet, Workload
from penstock_core.timing.batch_length import ordinary_batch_s, smooth_batch_tokens
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.step_tail import LATE_WINDOWS, spare_steps
from penstock_core.timing.time_model import BatchWork, Term, TimeModel, chunk_work
from recorded_lines import assert_recorded

from examples import examples

OPT = time_model("slos-serve-opt-6.7b-a100")
ORDINARY_S = ordinary_batch_s(OPT.prefill_seconds(1))
LLAMA = time_model("llama-3-8b-a100")
ON_CPU = TimeModel("cpu", (Term(8.4e-5, 1.6e-3),))
NOW_S = 10.0
STEP_S = OPT.prefill_seconds(1)
ORDINARY = BatchingRule(0.1)


def prompt(
    name: str,
    tokens: int,
    due_in_s: float,
    *,
    output: int = 50,
    tpot_s: float | None = 0.1,
    judge: Judge = Judge.MEAN,
) -> Job:
    request = Request(name, "tier", NOW_S, tokens, 4096, Targets(due_in_s, tpot_s, None, judge))
    return new_job(request, output, False, output)


def decode(
    name: str,
    *,
    due_in_s: float = 0.1,
    tpot_s: float | None = 0.1,
    came: int = 1,
    output: int = 60,
    sure: int = 0,
    judge: Judge = Judge.MEAN,
    context: int = 300,
    answer_tpot_s: float | None = None,
) -> Job:
    """One with `came` generated tokens, on time so far."""
    request = Request(name, "tier", 0.0, context, 4096, Targets(1.0, tpot_s, None, judge, answer_tpot_s))
    first_s = NOW_S + due_in_s - came * (tpot_s or 0.0)
    job = advance(new_job(request, output, False, sure), context, 1, first_s)
    for token in range(1, came):
        job = advance(job, 1, 1, first_s + token * (tpot_s or 0.0))
    return job


def replica(model: TimeModel = OPT, busy_s: float = 0.0, batch_tokens: int = 8192) -> ReplicaView:
    kv, limits = KvCache(10_000, 10_000, 16), Limits(batch_tokens)
    return ReplicaView(NOW_S, NOW_S + busy_s, (), (), kv, limits, model)


def foreseen(
    decodes: list[Job], prompts: list[Job], rule: BatchingRule = ORDINARY, view: ReplicaView | None = None
) -> BatchPlan:
    return plan(InitialState.of(view or replica(), decodes, prompts), rule)


def test_a_plan_without_requests_is_feasible() -> None:
    reported = foreseen([], [])
    assert reported._replace(rows=None) == BatchPlan(  # type: ignore[arg-type]
        ORDINARY,
        None,  # type: ignore[arg-type]
        in_time=True,
        sustainable=True,
        first=FirstBatch(0.1, NO_SPECULATION),
        first_token_s=[],
        batches=[],
    )


def test_a_prompt_alone_is_done_when_its_batch_ends() -> None:
    reported = foreseen([], [prompt("p", 500, 1.0)])
    assert reported.in_time
    assert reported.first_token_s[0] == pytest.approx(NOW_S + OPT.prefill_seconds(500))
    assert reported.batches == [1]


def test_a_plan_starts_when_the_batch_in_progress_ends() -> None:
    reported = foreseen([], [prompt("p", 500, 1.0)], view=replica(busy_s=0.03))
    assert reported.first_token_s[0] == pytest.approx(NOW_S + 0.03 + OPT.prefill_seconds(500))


def test_the_batch_in_progress_returns_a_token_of_every_decode() -> None:
    """So what is due before the one after that is not late; a request that began in it has none yet."""
    nearly_due, busy = [decode("d", due_in_s=0.04)], replica(busy_s=0.03)
    assert foreseen(nearly_due, [prompt("p", 500, 1.0)], view=busy).first.limit_s == pytest.approx(0.1)
    began = [decode("d", due_in_s=0.13)]
    assert foreseen(began, [], view=busy).first.limit_s == pytest.approx(0.1)


def test_the_batching_rule_sets_the_number_of_batches_of_a_long_prompt() -> None:
    slow, fast = (foreseen([], [prompt("p", 3000, 9.0)], BatchingRule(longest)) for longest in (0.06, 0.3))
    assert slow.batches[0] > fast.batches[0] == 1
    assert slow.first_token_s[0] > fast.first_token_s[0]


def test_a_plan_with_a_late_prompt_is_infeasible() -> None:
    pair = [prompt("a", 1500, 0.15), prompt("b", 1500, 0.16)]
    assert foreseen([], pair[:1], BatchingRule(0.3)).in_time
    assert not foreseen([], pair, BatchingRule(0.3)).in_time
    assert not foreseen([], [prompt("a", 3000, 0.24)], BatchingRule(0.06)).in_time


def test_a_plan_does_not_wait_for_a_request_that_is_late_in_any_case() -> None:
    assert foreseen([], [prompt("late", 3000, 0.05), prompt("b", 500, 1.0)]).in_time


def test_a_prompt_due_shortens_the_batch_that_finishes_it() -> None:
    due_s = OPT.prefill_seconds(200) + 0.001
    reported = foreseen([], [prompt("a", 200, due_s), prompt("b", 2000, 5.0)])
    assert reported.in_time
    assert reported.first_token_s[0] <= NOW_S + due_s + 1e-9


def test_batches_last_until_the_first_token_due() -> None:
    assert foreseen([decode("d", due_in_s=0.04)], [prompt("p", 900, 1.0)]).first.limit_s == pytest.approx(
        0.04
    )


def test_a_late_decode_limits_the_batch_to_half_of_its_slack() -> None:
    reported = foreseen([decode("d", due_in_s=-0.2)], [prompt("p", 900, 5.0)])
    assert reported.in_time
    assert reported.first.limit_s == pytest.approx((STEP_S + 0.1) / 2, abs=1e-3)


def test_a_tpot_target_that_no_batch_meets_limits_no_batch() -> None:
    reported = foreseen([decode("d", tpot_s=0.02, due_in_s=0.02)], [prompt("p", 900, 5.0)])
    assert reported.in_time
    assert reported.sustainable


def test_windows_are_extended_by_tokens_that_surely_follow() -> None:
    def limit_s(came: int, sure: int) -> float:
        decodes = [decode("d", came=came, due_in_s=0.05, judge=Judge.WINDOW, sure=sure)]
        return foreseen(decodes, [prompt("p", 3000, 5.0)], BatchingRule(1.0)).first.limit_s

    catch_up_s = STEP_S + 0.002
    assert limit_s(1, 60) == pytest.approx(0.05 + 9 * (0.1 - catch_up_s), abs=0.02)
    assert limit_s(8, 60) == pytest.approx(0.05 + 2 * (0.1 - catch_up_s), abs=0.01)
    assert limit_s(8, 10) == pytest.approx(0.05 + 1 * (0.1 - catch_up_s), abs=0.01)
    assert limit_s(8, 0) == pytest.approx(0.05)
    assert limit_s(10, 60) == pytest.approx(0.05)


def test_beside_a_long_answer_batches_have_a_margin() -> None:
    """The window's end is 0.4 s away."""

    def limit_s(left: int, margin: float) -> float:
        ahead = decode("d", came=10, due_in_s=0.4, judge=Judge.WINDOW, output=10 + left)
        return foreseen([ahead], [prompt("p", 9000, 99.0)], BatchingRule(1.0, margin=margin)).first.limit_s

    assert limit_s(5000, 0.0) == pytest.approx(0.4)
    assert limit_s(5000, 0.25) == limit_s(1000, 0.25) == pytest.approx(0.4 / 1.25)
    assert limit_s(999, 0.25) == limit_s(1, 0.25) == pytest.approx(0.4)


def test_a_margin_for_a_long_answer_does_not_apply_to_other_requests() -> None:
    long = decode("long", came=10, due_in_s=0.4, judge=Judge.WINDOW, output=3000)
    short = decode("short", came=10, due_in_s=0.35, judge=Judge.WINDOW, output=60)
    rule, coming = BatchingRule(1.0, margin=0.25), [prompt("p", 9000, 99.0)]
    assert foreseen([long, short], coming, rule).first.limit_s == pytest.approx(0.32)
    assert foreseen([long._replace(due_s=NOW_S + 0.6), short], coming, rule).first.limit_s == pytest.approx(
        0.35
    )


def test_a_margin_never_makes_decodes_late() -> None:
    """Their own batch takes all of their slack: it may, and a course in which it does keeps them."""
    due = decode("d", came=10, due_in_s=STEP_S + 1e-3, judge=Judge.WINDOW, output=5000)
    reported = foreseen([due], [], BatchingRule(1.0, margin=0.25))
    assert reported.in_time
    assert STEP_S <= reported.first.limit_s <= STEP_S + 1e-3


CAREFUL = replace(replica(), model=replace(OPT, deadline_margin=0.25))


def with_deadline_margin(judge: Judge = Judge.WINDOW, **of_decode: Any) -> float:
    """The share by which a margin of batches at a deadline shortens the first batch beside a decode."""
    decodes = [decode("d", due_in_s=0.2, judge=judge, **of_decode)]
    coming = [prompt("p", 9000, 99.0)]
    without, careful = (
        foreseen(decodes, coming, BatchingRule(9.0), view).first.limit_s for view in (replica(), CAREFUL)
    )
    return without / careful - 1


@pytest.mark.parametrize("came", [1, 5, 10])
def test_a_batch_after_which_a_window_may_end_has_a_margin(came: int) -> None:
    assert with_deadline_margin(came=came, sure=came) == pytest.approx(0.25)


def test_a_batch_that_later_tokens_of_the_window_can_make_up_for_has_none() -> None:
    assert with_deadline_margin(came=9, sure=60) == 0.0
    assert with_deadline_margin(came=10, sure=60) == pytest.approx(0.25)


def test_each_gap_is_a_window_and_a_mean_over_the_whole_answer_is_none() -> None:
    assert with_deadline_margin(Judge.MAX, came=5, sure=60) == pytest.approx(0.25)
    assert with_deadline_margin(Judge.MEAN, came=5, sure=5) == 0.0


def test_thinking_of_unknown_length_has_a_margin_at_the_ends_of_whole_windows_only() -> None:
    assert with_deadline_margin(came=5, answer_tpot_s=9.0) == 0.0
    assert with_deadline_margin(came=10, answer_tpot_s=9.0) == pytest.approx(0.25)


def test_a_batch_that_finishes_a_prompt_at_its_deadline_has_a_margin_for_the_prompts_behind() -> None:
    urgent, patient = prompt("urgent", 200, 0.05), prompt("patient", 5000, 99.0)
    first_s = foreseen([], [urgent, patient], view=CAREFUL).first_token_s[0] - NOW_S
    assert 0.039 < first_s <= 0.05 / 1.25
    exact = prompt("exact", 200, OPT.prefill_seconds(200) + 1e-6)
    found = foreseen([], [exact, patient], view=CAREFUL)
    assert found.in_time
    assert found.first_token_s[0] - NOW_S == pytest.approx(OPT.prefill_seconds(200))


def test_thinking_may_have_ended_with_its_last_token_even_if_it_was_far_ahead() -> None:
    """It is 0.4 s ahead; its last token came 0.1 s ago, or comes with the batch under way."""

    def limit_s(answer_tpot_s: float | None, busy_s: float = 0.0) -> float:
        ahead = decode("d", due_in_s=0.5, came=6, answer_tpot_s=answer_tpot_s)
        ahead = ahead if answer_tpot_s is None else ahead._replace(last_token_s=NOW_S - 0.1)
        return foreseen(
            [ahead], [prompt("p", 9000, 9.0)], BatchingRule(1.0), replica(busy_s=busy_s)
        ).first.limit_s

    assert limit_s(None) == pytest.approx(0.5)
    assert limit_s(0.25) == pytest.approx(0.15)
    assert limit_s(0.25, busy_s=0.02) == pytest.approx(0.25)
    assert limit_s(STEP_S / 2) > 0.4, "a limit that decodes alone exceed no longer applies"


def test_a_job_without_a_tpot_target_makes_no_other_late() -> None:
    """A decode is due just when a batch of its own ends: with any other request in the batch it is late."""
    due = decode("d", due_in_s=STEP_S + 1e-4)
    along = [decode(f"free{i}", tpot_s=None) for i in range(200)]
    assert foreseen([due], [prompt("p", 20, 9.0)]).in_time
    assert not foreseen([due, *along], [prompt("p", 20, 9.0)]).in_time


def test_a_decode_that_can_wait_is_skipped_if_the_rule_permits() -> None:
    decodes = [decode("tight", tpot_s=0.05, due_in_s=0.05), decode("loose", tpot_s=0.3, due_in_s=0.3)]
    prompts = [prompt("p", 3000, 5.0)]
    assert foreseen(decodes, prompts).first.skipped == frozenset()
    reported = foreseen(decodes, prompts, BatchingRule(0.1, skips=True))
    assert reported.first.skipped == {1}
    assert reported.in_time


def test_a_decode_that_is_due_exactly_at_the_end_of_the_batch_after_the_next_is_skipped() -> None:
    """And one that is due a little earlier is not: that batch is one of all decodes, a window further."""
    after_s = OPT.seconds(BatchWork(2, 2 * (301 + WINDOW_TOKENS)))

    def skipped(early_s: float) -> frozenset[int]:
        loose = decode("loose", tpot_s=0.3, due_in_s=0.05 + after_s - early_s)
        decodes = [decode("tight", tpot_s=0.05, due_in_s=0.05), loose]
        return foreseen(decodes, [], BatchingRule(0.1, skips=True)).first.skipped

    assert skipped(0.0) == {1}
    assert skipped(1e-6) == frozenset()


def test_more_decodes_than_a_tpot_permits_are_not_sustainable() -> None:
    many = [decode(f"d{i}", tpot_s=0.05, due_in_s=0.05) for i in range(400)]
    assert not foreseen(many, []).sustainable
    few = many[:1] + [decode(f"l{i}", tpot_s=0.5, due_in_s=0.5) for i in range(399)]
    assert not foreseen(few, []).sustainable
    assert foreseen(few, [], BatchingRule(0.1, skips=True)).sustainable


def test_drafts_are_in_every_batch() -> None:
    decodes, prompts = [decode(f"d{i}") for i in range(20)], [prompt("p", 3000, 5.0)]
    plain, drafting = (foreseen(decodes, prompts, BatchingRule(0.1, {"tier": drafts})) for drafts in (0, 4))
    assert drafting.first_token_s[0] > plain.first_token_s[0]


def test_a_preempted_prompt_continues_from_its_anchor() -> None:
    """It resumes late, so its next token is due sooner than a new one's would be."""
    gone = preempted(decode("d", came=5, due_in_s=0.3))
    behind, ahead = prompt("p", 1000, 0.6), prompt("p", 1000, 9.0)
    assert foreseen([], [gone, ahead]).in_time
    assert foreseen([], sorted([gone, behind], key=deadline_order)).in_time
    strict = preempted(decode("d", came=5, due_in_s=0.3, judge=Judge.MAX))
    assert foreseen([], [strict, ahead]).in_time


def test_an_answer_of_one_token_never_decodes() -> None:
    reported = foreseen([], [prompt("a", 200, 1.0, output=1, tpot_s=0.0249), prompt("b", 5000, 9.0)])
    assert reported.in_time


def test_a_plan_with_too_many_batches_is_infeasible() -> None:
    endless = [prompt("p", 40 * (MOST_BATCHES + 1), inf, tpot_s=None)]
    assert not foreseen([], endless, view=replica(batch_tokens=40)).in_time
    crowd = [decode(f"d{i}", tpot_s=None, output=500) for i in range(40)]
    assert not foreseen(crowd, [prompt("p", 300, inf)], view=replica(batch_tokens=40)).in_time


def any_replica(random: Random) -> tuple[ReplicaView, list[Job], list[Job]]:
    """Any jobs at all, also those that admission would not have led to."""
    judges = list(Judge)
    decodes = [
        decode(
            f"d{i}",
            due_in_s=random.uniform(-0.1, 0.4),
            tpot_s=random.choice((None, 0.02, 0.04, 0.1, 0.3)),
            came=random.randint(1, 25),
            output=random.randint(1, 60),
            sure=random.choice((0, 40)),
            judge=random.choice(judges),
            context=random.randint(1, 1500),
            answer_tpot_s=random.choice((None, None, 0.01, 0.15)),
        )
        for i in range(random.randint(0, 20))
    ]
    prompts = [
        prompt(
            f"p{i}",
            random.randint(1, 3000),
            random.uniform(0.01, 3.0),
            output=random.randint(1, 60),
            tpot_s=random.choice((None, 0.05, 0.2)),
            judge=random.choice(judges),
        )
        for i in range(random.randint(0, 4))
    ]
    if decodes and random.random() < 0.3:
        prompts.append(preempted(decodes.pop()))
    view = replica(random.choice((OPT, LLAMA)), random.choice((0.0, 0.05)), random.choice((30, 512, 8192)))
    return view, decodes, sorted(prompts, key=deadline_order)


Numbers = tuple[int, int, float, list[int], list[float], list[int]]


def simulated(state: InitialState, rule: BatchingRule, *, compiled: bool) -> Numbers:
    run = simulate if compiled else interpreted(simulate)
    drafts = np.full(len(state.tiers), float(rule.speculation.get("tier", 0)))
    rows = Rows._make([column.copy() for column in state.rows._replace(drafts=drafts)])
    prompts = Prompts._make([column.copy() for column in state.prompts])
    in_time, sustainable, limit_s, chosen, first_token_s, batches = run(
        state.engine, rows, prompts, Rule(rule.longest_s, int(rule.skips), rule.margin), state.start_s
    )
    return in_time, sustainable, limit_s, chosen.tolist(), first_token_s.tolist(), batches.tolist()


RULES = [
    BatchingRule(longest_s, speculation, skips, margin)
    for longest_s in (0.1, 0.4)
    for speculation in ({}, {"tier": 3})
    for skips in (False, True)
    for margin in (0.0, 0.2)
]


def with_slow_steps(model: TimeModel, chance: float = 0.02, factor: float = 4.0) -> TimeModel:
    return replace(model, slow_chance=chance, slow_excess=factor - 1)


ROUGH = replace(replica(), model=with_slow_steps(OPT))


def test_a_window_leaves_time_for_the_batch_to_be_a_slow_one() -> None:
    """Two tokens of a loose window are left: a second slow step is too unlikely to leave time for it."""
    decodes = [decode("d", came=9, due_in_s=0.2, judge=Judge.WINDOW, sure=60)]
    coming = [prompt("p", 3000, 5.0)]
    steady, rough = (foreseen(decodes, coming, BatchingRule(1.0), view) for view in (replica(), ROUGH))
    assert rough.first.limit_s == pytest.approx(steady.first.limit_s / 4.0)


def test_an_answer_with_more_windows_left_must_survive_more_slow_steps() -> None:
    def limit_s(output: int, judge: Judge = Judge.WINDOW) -> float:
        decodes = [decode("d", came=1, due_in_s=0.1, judge=judge, output=output, sure=output)]
        return foreseen(decodes, [prompt("p", 9000, 99.0)], BatchingRule(1.0), ROUGH).first.limit_s

    assert limit_s(30) > limit_s(300) > limit_s(9000) > STEP_S
    assert limit_s(30, Judge.MEAN) == limit_s(9000, Judge.MEAN) == pytest.approx(0.1)


def test_decodes_that_slow_steps_make_late_are_not_sustainable() -> None:
    """Half of the target is left beside steady decodes; three slow steps in ten take more."""

    def sustainable(output: int, view: ReplicaView, judge: Judge = Judge.WINDOW) -> bool:
        one = decode("d", tpot_s=0.045, due_in_s=0.045, judge=judge, output=output)
        return foreseen([one], [], view=view).sustainable

    assert sustainable(9000, replica())
    assert sustainable(20, ROUGH)
    assert not sustainable(9000, ROUGH)
    assert sustainable(9000, ROUGH, Judge.MEAN)
    assert not sustainable(20, ROUGH, Judge.MAX)


def may_be_slow(slow: set[int], risk: float) -> set[int]:
    """Those of a window's steps, counted from its end, that plans leave time for."""
    kept: set[int] = set()
    for left in sorted(slow):
        if len(kept) < spare_steps(0.02, left, risk):
            kept.add(left)
    return kept


@examples(60)
@given(st.sets(st.integers(1, WINDOW_TOKENS), max_size=5), st.sampled_from((30, 900, 9000)))
def test_a_window_survives_all_slow_steps_that_fit_into_it(slow: set[int], output: int) -> None:
    """Every batch is as long as it may be, and whichever of them are slow, the window ends in time."""
    job, tpot_s, now_s = (
        decode("d", tpot_s=0.055, due_in_s=0.055, judge=Judge.WINDOW, output=output),
        0.055,
        NOW_S,
    )
    slow = may_be_slow(slow, LATE_WINDOWS / (output / WINDOW_TOKENS))
    for left in range(WINDOW_TOKENS, 0, -1):
        view = replace(ROUGH, now_s=now_s, busy_until_s=now_s)
        job = job._replace(sure_tokens=output)
        took_s = foreseen([job], [prompt("p", 9000, 99.0)], view=view).first.limit_s
        now_s += took_s * (4.0 if left in slow else 1.0)
        job = advance(job, 1, 1, now_s)
    assert now_s <= NOW_S + WINDOW_TOKENS * tpot_s + 1e-6


def test_batches_beside_judged_gaps_are_short_if_prompts_are_in_time_with_them() -> None:
    """A prompt of 6,000 tokens takes 0.69 s in batches of four of the shortest, 0.58 s in those of eight."""
    view, few = replica(ON_CPU), smooth_batch_tokens(ON_CPU)

    def most_tokens(judge: Judge, due_in_s: float) -> int:
        stream = decode("d", tpot_s=0.2, due_in_s=0.2, judge=judge)
        found = best_plan(AdmittedSet(view, [stream], [prompt("p", 6000, due_in_s)]))
        assert found.feasible
        return found.first.most_tokens

    assert most_tokens(Judge.MAX, 1.0) == few
    assert most_tokens(Judge.MAX, 0.65) > few
    assert most_tokens(Judge.WINDOW, 1.0) > few


def test_the_engine_computes_as_many_tokens_as_the_plan() -> None:
    stream, coming = decode("d", tpot_s=0.2, due_in_s=0.2, judge=Judge.MAX), prompt("p", 6000, 1.0)
    view = replace(replica(ON_CPU), running=(stream,), waiting=(coming,))
    step = form_batch(Workload.of(view, 30.0))
    assert sum(step.tokens.values()) == smooth_batch_tokens(ON_CPU)


def test_every_decode_is_computed_however_few_tokens_a_batch_has() -> None:
    streams = [decode(f"d{n}", tpot_s=0.5, due_in_s=0.5, judge=Judge.MAX) for n in range(100)]
    offline = prompt("offline", 500, 9.0)._replace(best_effort=True)
    assert len(streams) > smooth_batch_tokens(ON_CPU)
    view = replace(replica(ON_CPU), running=tuple(streams), waiting=(offline,))
    step = form_batch(Workload.of(view, 30.0))
    assert {job.request.id for job in streams} <= step.tokens.keys()


def test_no_decode_waits_if_steps_may_be_slow() -> None:
    assert any(rule.skips for rule in rules(AdmittedSet(replica(), [TIGHT, LOOSE])))
    assert not any(rule.skips for rule in rules(AdmittedSet(ROUGH, [TIGHT, LOOSE])))


def test_batches_are_extended_for_contexts_grown_by_a_window() -> None:
    """What a batch takes longer, tokens after it make up for; each of them takes as long as the last will."""
    count, tpot_s, context = 100, 0.1, 3000
    running = [
        decode(f"d{i}", due_in_s=tpot_s, tpot_s=tpot_s, sure=60, judge=Judge.WINDOW, context=context)
        for i in range(count)
    ]
    grown = BatchWork(count, count * (context + 1 + WINDOW_TOKENS))
    reported = foreseen(running, [], BatchingRule(9.0), replica(LLAMA))
    assert reported.first.limit_s == pytest.approx(
        tpot_s + (WINDOW_TOKENS - 1) * (tpot_s - LLAMA.seconds(grown)), abs=1e-9
    )


def test_plans_of_drawn_states_equal_the_recorded_ones() -> None:
    """Record an intended change with `PENSTOCK_RECORD=1` in the environment."""
    lines = []
    for seed in range(160):
        state, rule = InitialState.of(*any_replica(Random(seed))), RULES[seed % len(RULES)]
        numbers = simulated(state, rule, compiled=False)
        lines.append(" ".join(f"{number:.8g}" for part in numbers for number in np.atleast_1d(part)))
    assert_recorded(Path(__file__).with_name("recorded_plans.json"), "plans", lines)


@examples(150)
@given(st.integers(0, 1 << 20))
def test_compiled_and_interpreted_plans_are_the_same(seed: int) -> None:
    random = Random(seed)
    view, *jobs = any_replica(random)
    slow = random.choice((view.model, with_slow_steps(view.model)))
    state, rule = InitialState.of(replace(view, model=slow), *jobs), random.choice(RULES)
    assert simulated(state, rule, compiled=True) == simulated(state, rule, compiled=False)


@examples(100)
@given(st.integers(0, 1 << 20))
def test_first_tokens_of_a_feasible_plan_are_in_time(seed: int) -> None:
    random = Random(seed)
    view, decodes, prompts = any_replica(random)
    state = InitialState.of(view, decodes, prompts)
    reported = plan(state, random.choice(RULES))
    due_s = state.prompts.due_s.tolist()
    assert not reported.in_time or all(
        done <= due + 1e-6 for done, due in zip(reported.first_token_s, due_s, strict=True)
    )


@examples(100)
@given(st.integers(0, 1 << 20))
def test_removing_a_prompt_never_makes_a_plan_of_one_batch_infeasible(seed: int) -> None:
    """A request that leaves only frees capacity."""
    random = Random(seed)
    view, _, prompts = any_replica(random)
    reported = foreseen([], prompts, BatchingRule(9.0), replace(view, model=OPT))
    if reported.in_time and max(reported.batches, default=1) == 1 and prompts:
        left = [*prompts]
        left.remove(random.choice(prompts))
        assert foreseen([], left, BatchingRule(9.0), replace(view, model=OPT)).in_time


FAST = time_model("llama-3-8b-h100")
TIGHT, LOOSE = decode("tight", tpot_s=0.05, due_in_s=0.05), decode("loose", due_in_s=0.1)


def holding(blocks: int, speculation: Speculation | None = None) -> ReplicaView:
    return replace(replica(), kv=KvCache(blocks, blocks, 16), speculation=speculation)


def best(view: ReplicaView, decodes: list[Job], prompts: list[Job]) -> BatchPlan:
    return best_plan(AdmittedSet(view, decodes, prompts))


def test_longer_batches_are_tried_later_and_skipping_last() -> None:
    tried = [(rule.longest_s, rule.skips) for rule in rules(AdmittedSet(replica(), [TIGHT, LOOSE]))]
    assert tried == [*((ORDINARY_S * factor, False) for factor in LENGTHS), (ORDINARY_S, True)]


def test_each_rule_is_tried_with_speculation_and_then_without() -> None:
    tried = [*rules(AdmittedSet(holding(10_000, Speculation(5, 0.7)), [TIGHT, LOOSE]))]
    assert [bool(rule.speculation) for rule in tried] == [True, False] * (len(LENGTHS) + 1)


def test_no_decode_is_skipped_if_targets_are_similar_or_memory_is_short() -> None:
    close = decode("close", tpot_s=0.09, due_in_s=0.09)
    assert not any(rule.skips for rule in rules(AdmittedSet(replica(), [TIGHT, close])))
    assert not any(rule.skips for rule in rules(AdmittedSet(replica(), [decode("free", tpot_s=None)])))
    full_blocks = 2 * -(-360 // 16)
    assert any(rule.skips for rule in rules(AdmittedSet(holding(full_blocks), [TIGHT, LOOSE])))
    assert not any(rule.skips for rule in rules(AdmittedSet(holding(full_blocks - 1), [TIGHT, LOOSE])))


def test_the_first_feasible_plan_is_taken() -> None:
    just_s = OPT.prefill_seconds(3000) + 0.001
    assert best(replica(), [], [prompt("p", 3000, 3.0)]).rule.longest_s == ORDINARY_S
    assert best(replica(), [], [prompt("p", 3000, just_s)]).rule.longest_s == LENGTHS[-1] * ORDINARY_S
    assert best(holding(10_000, Speculation(5, 0.7)), [TIGHT], [prompt("p", 900, 3.0)]).rule.speculation


def test_skipping_decodes_is_considered_only_if_all_other_rules_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requested: list[int] = []

    def never(admitted: AdmittedSet) -> bool:
        requested.append(len(admitted.jobs))
        return False

    monkeypatch.setattr(batch_plan, "_may_wait", never)
    assert best(replica(), [TIGHT, LOOSE], [prompt("p", 900, 3.0)]).feasible
    assert not requested
    assert not best(replica(), [TIGHT, LOOSE], [prompt("a", 3000, 0.24), prompt("b", 3000, 0.25)]).feasible
    assert requested == [4]


def test_without_a_feasible_plan_batches_are_long_and_no_decode_waits() -> None:
    reported = best(replica(), [TIGHT, LOOSE], [prompt("a", 3000, 0.24), prompt("b", 3000, 0.25)])
    assert not reported.feasible
    assert (reported.rule.longest_s, reported.rule.skips) == (LENGTHS[-1] * ORDINARY_S, False)


def test_rules_have_a_margin_while_more_were_rejected_than_admitted() -> None:
    jobs = [TIGHT, prompt("p", 900, 3.0)]
    margins = [
        {rule.margin for rule in rules(AdmittedSet(replica(), jobs, rejected=rejected))}
        for rejected in (0, 2, 3)
    ]
    assert margins == [{0.0}, {0.0}, {MARGIN}]


def test_the_engine_plans_without_the_margin_if_only_that_is_feasible() -> None:
    """A long answer 0.4 s ahead, and a prompt that takes nearly all of that and is due then."""
    ahead = decode("ahead", due_in_s=0.4, output=5000)
    hurried = prompt("p", 4700, OPT.seconds(BatchWork(4701, 301, chunk_work(4700, 0))) + 0.005)
    assert best(replica(), [ahead], [hurried]).feasible
    overloaded = AdmittedSet(replica(), [ahead], [hurried], rejected=3)
    assert not best_plan(overloaded).feasible
    reported = best_plan(overloaded, either_margin=True)
    assert reported.feasible
    assert reported.rule.margin == 0.0
