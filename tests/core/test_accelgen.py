"""AccelGen's published rules on worked examples: budget, remaining time, both algorithms, long prompts."""

from functools import partial
from math import inf

import pytest
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job, preempted
from penstock_core.domain.slo import Judge, Targets
from penstock_core.policies.accelgen.batch import ResourceDemand, distance
from penstock_core.policies.accelgen.policy import AccelGen, AccelGenState
from penstock_core.policies.accelgen.remaining_time import (
    LEARNING_RATE,
    IterationSpeed,
    PreemptionHistory,
    claim,
    preemptions_after,
)
from penstock_core.policies.accelgen.token_budget import Budget, budget, pivot_tokens
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork, Term, TimeModel, chunk_work
from replica_views import replica_view

MODEL = TimeModel("round", (Term(1e-4, 0.010),))
"""10 ms an iteration and a tenth of a millisecond a token: saturated with 400 tokens, in 50 ms."""

TEMPO = IterationSpeed(chunk_tokens=400.0, iteration_s=0.05)
NOW_S = 10.0
TTFT_ONLY, FOREVER_S = Targets(1.0), 30.0


def prompt(
    name: str,
    tokens: int = 100,
    *,
    waited_s: float = 0.1,
    targets: Targets = TTFT_ONLY,
    done: int = 0,
    output: int = 50,
    best_effort: bool = False,
) -> Job:
    request = Request(name, "chat", NOW_S - waited_s, tokens, 4096, targets)
    job = new_job(request, output, best_effort)
    return advance(job, done, 0, NOW_S) if done else job


def decode(
    name: str, *, context: int = 100, tpot_s: float | None = 0.1, waited_s: float = 0.0, tokens: int = 1
) -> Job:
    """A decode that is judged by single gaps and has had its last token `waited_s` ago."""
    targets = Targets(1.0, tpot_s, None, Judge.MAX)
    job = new_job(Request(name, "chat", NOW_S - 5, context, 4096, targets), 50, best_effort=False)
    job = advance(job, context, 1, NOW_S - waited_s)
    for _ in range(tokens - 1):
        job = advance(job, 1, 1, NOW_S - waited_s)
    return job


replica = partial(replica_view, model=MODEL, now_s=NOW_S)


def step_of(view: ReplicaView, policy: AccelGen | None = None) -> Step:
    policy = policy or AccelGen()
    return policy.step(view, policy.start())[0]


def remaining_s(job: Job, speed: IterationSpeed = TEMPO) -> float:
    return claim(job, NOW_S, speed, 0.1875, FOREVER_S).remaining_s


# Budget (eq. 6)


def test_the_pivot_is_where_throughput_saturates() -> None:
    assert pivot_tokens(MODEL) == 400
    assert 400 / MODEL.prefill_seconds(400) == pytest.approx(0.8 / 1e-4)
    assert pivot_tokens(time_model("opt-13b-a100")) == pytest.approx(768, rel=0.06)  # as the paper measured
    assert pivot_tokens(TimeModel("flat", (Term(0.0, 0.01),))) > 1e9


def test_the_budget_fits_the_tightest_tpot_and_is_at_most_the_pivot() -> None:
    loose, tight = decode("loose", tpot_s=0.09), decode("tight", tpot_s=0.03)
    view = replica([], [])
    assert budget(view, [loose, tight], 0.1875).tokens == 200
    assert budget(view, [loose, tight], 0.1875).limit_s == 0.03
    assert budget(view, [loose], 0.1875).tokens == 400
    assert budget(view, [], 0.1875) == Budget(400, inf, pytest.approx(0.05))  # type: ignore[arg-type]


def test_the_budget_counts_the_context_that_decodes_read() -> None:
    """20 ms are left for tokens and for reading 101 tokens of context at 50 us each."""
    reading = TimeModel("reading", MODEL.terms, 5e-5)
    tight = budget(replica([], [], model=reading), [decode("d", tpot_s=0.03)], 0.1875)
    assert tight.tokens == int((0.020 - 101 * 5e-5) / 1e-4 + 1e-6)
    assert tight.longest_s == reading.seconds(BatchWork(tight.tokens, 101))
    assert budget(replica([], [], limits=Limits(batch_tokens=0)), [], 0.1875).longest_s == pytest.approx(
        0.0101
    )


def test_a_decode_without_a_tpot_keeps_to_reading_speed() -> None:
    assert budget(replica([], []), [decode("a", tpot_s=None)], 0.02).tokens == 100


def test_a_tpot_that_decodes_alone_exceed_limits_no_batch() -> None:
    hopeless, tight = decode("hopeless", tpot_s=0.010), decode("tight", tpot_s=0.03)
    assert budget(replica([], []), [hopeless, tight], 0.1875).limit_s == 0.03
    assert budget(replica([], []), [hopeless], 0.1875).limit_s == inf


def test_the_engines_own_limit_bounds_the_budget() -> None:
    assert budget(replica([], [], limits=Limits(batch_tokens=64)), [], 0.1875).tokens == 64


# Remaining time


def test_a_prompt_s_remaining_time_is_its_target_less_wait_and_chunks() -> None:
    assert remaining_s(prompt("a", 100, waited_s=0.3)) == pytest.approx(1.0 - 0.3 - 0.05)
    assert remaining_s(prompt("a", 1001, waited_s=0.3)) == pytest.approx(1.0 - 0.3 - 3 * 0.05)
    assert remaining_s(prompt("a", 1001, waited_s=0.3, done=300)) == pytest.approx(1.0 - 0.3 - 2 * 0.05)


def test_a_decode_s_remaining_time_is_its_gap_less_one_iteration() -> None:
    assert remaining_s(decode("a", tpot_s=0.2)) == pytest.approx(0.2 - 0.05)
    assert remaining_s(decode("a", tpot_s=0.2, waited_s=0.08)) == pytest.approx(0.2 - 0.08 - 0.05)


def test_prompts_without_targets_wait_and_decodes_keep_to_reading_speed() -> None:
    assert remaining_s(prompt("a", waited_s=4.0, targets=Targets())) == pytest.approx(30 - 4 - 0.05)
    reader = advance(prompt("b", targets=Targets()), 100, 1, NOW_S - 0.1)
    assert remaining_s(reader) == pytest.approx(0.1875 - 0.1 - 0.05)


def test_recomputation_takes_all_chunks_of_the_computed_context() -> None:
    job = advance(prompt("a", 400), 400, 1, NOW_S)
    assert claim(job, NOW_S, TEMPO, 0.1875, FOREVER_S).recompute_s == pytest.approx(2 * 0.05)


def test_many_preemptions_at_once_count_as_one_a_token() -> None:
    paused = [preempted(decode(name)) for name in "abcd"]
    assert preemptions_after(PreemptionHistory(), replica([], paused), 2).share == LEARNING_RATE
    assert preemptions_after(PreemptionHistory(), replica([], paused), 8).share == LEARNING_RATE / 2
    assert preemptions_after(PreemptionHistory(), replica([], paused[:1]), 0).share == LEARNING_RATE


@pytest.mark.parametrize(
    ("waited_s", "urgent"), [(0.8, False), (0.89, False), (0.91, True), (0.99, True), (1.01, False)]
)
def test_a_request_is_urgent_if_only_the_next_iteration_meets_its_target(
    waited_s: float, urgent: bool
) -> None:
    assert claim(prompt("a", waited_s=waited_s), NOW_S, TEMPO, 0.1875, FOREVER_S).urgent == urgent


JOB_TARGET = Targets(e2e_s=5.2)
"""With one chunk and 51 tokens, 52 iterations of a tenth of a second."""


def test_a_target_for_the_whole_job_is_spread_over_its_chunks_and_tokens() -> None:
    """(SLO − T_e) / (N_ck + S_g) with T_e = 52 · 50 ms: 50 ms of waiting each."""
    job = prompt("a", 400, waited_s=0.0, targets=JOB_TARGET, output=51)
    assert remaining_s(job) == pytest.approx((5.2 - 52 * 0.05) / 52)
    assert remaining_s(job._replace(output_tokens=103)) == pytest.approx(5.2 / 104 - 0.05)


@pytest.mark.parametrize(("waited_s", "urgent"), [(0.02, False), (0.03, True), (5.1, True), (5.3, False)])
def test_a_whole_job_is_urgent_while_its_target_can_be_kept(waited_s: float, urgent: bool) -> None:
    job = prompt("a", 400, waited_s=waited_s, targets=JOB_TARGET, output=40)
    assert claim(job, NOW_S, TEMPO, 0.1875, FOREVER_S).urgent == urgent


@pytest.mark.parametrize("used_s", [0.02, 0.05, 0.30])
def test_time_saved_or_overrun_by_an_iteration_is_carried_to_the_next(used_s: float) -> None:
    """Allowed 50 ms, it waited `used_s` and ran 50 ms: the next may wait 50 ms and what it saved."""
    job = prompt("a", 400, waited_s=used_s + 0.05, targets=JOB_TARGET, output=51)
    job = advance(job, 400, 1, NOW_S)
    assert remaining_s(job) == pytest.approx(0.05 + (0.05 - used_s) + 0.1)


def test_expected_preemptions_shorten_the_time_that_a_job_may_wait() -> None:
    job = advance(prompt("a", 400, waited_s=0.0, targets=JOB_TARGET, output=51), 400, 1, NOW_S)
    assert remaining_s(job) - remaining_s(job, TEMPO._replace(preempted_s=0.01)) == pytest.approx(0.01)


def test_the_nearer_of_two_targets_counts() -> None:
    both = prompt("a", 400, waited_s=0.0, targets=Targets(ttft_s=0.08, e2e_s=5.2), output=51)
    assert remaining_s(both) == pytest.approx(0.08 - 0.05)


def test_recomputed_tokens_of_an_answer_are_not_counted_as_prompt() -> None:
    job = prompt("a", 400, waited_s=0.0, targets=JOB_TARGET, output=51)._replace(generated_tokens=3)
    begun, done = job._replace(computed_tokens=399), job._replace(computed_tokens=400)
    assert remaining_s(begun) == pytest.approx(4 * 0.1 - 0.05)
    assert remaining_s(done) == pytest.approx(5 * 0.1 - 0.05)


def test_a_computed_chunk_advances_the_schedule() -> None:
    """Four iterations of a prompt and one of a token: each chunk done allows a fifth more of the time."""
    fresh = prompt("a", 1600, waited_s=0.0, targets=Targets(e2e_s=5.0), output=1)
    fresh = fresh._replace(output_tokens=1)
    assert remaining_s(fresh) == pytest.approx(1.0 - 0.05)
    assert remaining_s(advance(fresh, 400, 0, NOW_S)) == pytest.approx(2.0 - 0.05)


def test_pauses_are_measured_while_a_request_with_tokens_waits() -> None:
    paused = preempted(decode("a"))
    first = preemptions_after(PreemptionHistory(), replica([decode("b")], [paused, prompt("c")]), 1)
    assert first == PreemptionHistory({"a": NOW_S}, 0.0, 0.05)
    later = preemptions_after(first, replica([decode("a")], [], now_s=NOW_S + 2), 1)
    assert later == PreemptionHistory({}, 2.0, 0.05 * 0.95)
    assert later.per_token_s == pytest.approx(2 * 0.05 * 0.95)


# Algorithm 1


def test_decodes_are_kept_and_prompts_fill_the_budget() -> None:
    view = replica([decode("d", tpot_s=0.03)], [prompt("a", 150), prompt("b", 100)])
    assert step_of(view).tokens == {"d": 1, "a": 150, "b": 49}


def test_urgent_requests_are_served_before_decodes_that_can_wait() -> None:
    """Two urgent prompts fill the budget of 400; decodes with 0.9 s left sit out."""
    decodes = [decode(f"d{i}", tpot_s=1.0) for i in range(3)]
    waiting = [prompt("a", 300, waited_s=0.92), prompt("b", 300, waited_s=0.94)]
    assert step_of(replica(decodes, waiting)).tokens == {"b": 300, "a": 100}


def test_urgent_requests_preempt_the_one_with_most_time() -> None:
    running = [decode("soon", tpot_s=0.6), decode("late", tpot_s=0.9)]
    step = step_of(replica(running, [prompt("a", 100, waited_s=0.92)], free_blocks=1))
    assert (step.tokens, step.preempt) == ({"a": 100, "soon": 1}, ("late",))


def test_urgent_requests_take_a_slot_except_from_a_late_request() -> None:
    full = Limits(running=1)
    step = step_of(replica([decode("d", tpot_s=0.9)], [prompt("a", waited_s=0.92)], limits=full))
    assert (step.tokens, step.preempt) == ({"a": 100}, ("d",))
    step = step_of(
        replica([decode("d", tpot_s=0.9, waited_s=1.0)], [prompt("a", waited_s=0.92)], limits=full)
    )
    assert (step.tokens, step.preempt) == ({"d": 1}, ())


@pytest.mark.parametrize(("tpot_s", "served"), [(0.25, "a"), (0.18, "d")])
def test_a_decode_is_preempted_only_if_it_can_be_recomputed_in_time(tpot_s: float, served: str) -> None:
    """Computing 1,001 tokens again takes three iterations: 150 ms, beside the one it sits out."""
    running = [decode("d", context=1000, tpot_s=tpot_s)]
    policy, memory = AccelGen(), AccelGenState(chunk_tokens=400.0)
    view = replica(running, [prompt("a", 100, waited_s=0.93)], free_blocks=2)
    step = policy.step(view, memory)[0]
    assert (list(step.tokens), step.preempt) == ([served], ("d",) if served == "a" else ())


def test_a_decode_that_a_pause_would_make_late_is_served_before_urgent_prompts() -> None:
    running = [decode("tight", tpot_s=0.09), decode("loose", tpot_s=0.9)]
    step = step_of(replica(running, [prompt("a", 500, waited_s=0.89)]))
    assert list(step.tokens.items()) == [("tight", 1), ("a", 399)]


def test_an_urgent_prompt_without_any_room_waits() -> None:
    late = decode("d", tpot_s=0.2, waited_s=0.3)
    step = step_of(replica([late], [prompt("a", waited_s=0.92), prompt("b", waited_s=0.93)], free_blocks=0))
    assert (step.tokens, step.preempt) == ({"d": 1}, ())


def test_a_preempted_request_is_not_served_even_if_urgent() -> None:
    """The decode takes one of the prompt's four blocks, and the three that it lacks would be free."""
    pressing = prompt("p", 100, done=64, waited_s=0.92)
    step = step_of(replica([decode("d", context=16, tpot_s=0.06), pressing], [], free_blocks=0))
    assert (step.tokens, step.preempt) == ({"d": 1}, ("p",))


@pytest.mark.parametrize("block", [1, 16])
def test_best_effort_is_preempted_whatever_it_holds(block: int) -> None:
    offline = prompt("o", 500, done=block, best_effort=True, targets=Targets())
    step = step_of(replica([offline], [prompt("a", 100, waited_s=0.92)], free_blocks=6))
    assert (step.tokens.get("a"), step.preempt) == (100, ("o",))
    step = step_of(replica([decode("d", context=160, tpot_s=0.06), offline], [], free_blocks=0))
    assert (step.tokens, step.preempt) == ({"d": 1}, ("o",))
    waits = prompt("w", 500, best_effort=True, targets=Targets())
    step = step_of(replica([decode("d", context=160, tpot_s=0.06)], [waits], free_blocks=0))
    assert "w" not in step.preempt
    patient = prompt("p", 500, done=block, targets=Targets(50.0))
    step = step_of(replica([decode("d", context=160, tpot_s=0.06), patient], [], free_blocks=0))
    assert (step.tokens, step.preempt) == ({"d": 1}, ("p",))


@pytest.mark.parametrize(("free_blocks", "served"), [(57, True), (56, False)])
def test_an_urgent_prompt_leaves_the_blocks_that_prompts_in_progress_need(
    free_blocks: int, served: bool
) -> None:
    """The other lacks 50 blocks, and this one takes seven."""
    other = prompt("other", 900, done=100, targets=Targets(50.0))
    step = step_of(replica([other], [prompt("urgent", 112, waited_s=0.92)], free_blocks=free_blocks))
    assert ("urgent" in step.tokens) is served


def test_an_urgent_prompt_whose_next_token_would_end_too_late_is_not_in_the_batch() -> None:
    attending = TimeModel("attending", MODEL.terms, prefill_work_s=1e-6)
    far = prompt("far", 5000, done=4000, waited_s=0.92)
    assert step_of(replica([decode("d", tpot_s=0.03), far], [], model=attending)).tokens == {"d": 1}


def test_a_long_prompt_may_start_behind_an_urgent_one_that_finishes() -> None:
    waiting = [prompt("urgent", 100, waited_s=0.92), prompt("new", 5000)]
    assert step_of(replica([], waiting)).tokens == {"urgent": 100, "new": 300}


def test_half_computed_prompts_that_fill_the_cache_do_not_stop_the_engine() -> None:
    first, second = prompt("first", 800, done=160), prompt("second", 800, done=640)
    step = step_of(replica([first, second], [], free_blocks=0))
    assert (step.tokens, step.preempt) == ({"first": 640}, ("second",))


def test_a_decode_that_needs_a_block_preempts_the_one_with_most_time() -> None:
    running = [decode("a", context=160, tpot_s=0.9), decode("b", context=160, tpot_s=0.2)]
    step = step_of(replica(running, [], free_blocks=0))
    assert (step.tokens, step.preempt) == ({"b": 1}, ("a",))


# Algorithm 2


def test_distance_is_the_unused_share_of_both_resources() -> None:
    assert distance(ResourceDemand(100, 5), ResourceDemand(400, 45), 1000, 100) == pytest.approx(0.5)
    assert distance(ResourceDemand(400, 45), ResourceDemand(400, 45), 1000, 100) == 0.0


def test_the_prompt_nearest_to_the_remaining_budget_goes_first() -> None:
    waiting = [prompt("small", 20), prompt("large", 380), prompt("middle", 200)]
    assert step_of(replica([], waiting)).tokens == {"large": 380, "small": 20}


def test_only_prompts_with_similar_time_left_compete() -> None:
    waiting = [prompt("later", 380, waited_s=0.1), prompt("sooner", 30, waited_s=0.7)]
    assert list(step_of(replica([], waiting)).tokens) == ["later", "sooner"]
    assert list(step_of(replica([], waiting), AccelGen(gamma_s=0.5)).tokens) == ["sooner", "later"]


def test_a_prompt_without_blocks_is_passed_over() -> None:
    waiting = [prompt("large", 300), prompt("small", 30)]
    assert step_of(replica([decode("d")], waiting, free_blocks=3)).tokens == {"d": 1, "small": 30}


def test_the_last_token_of_the_budget_and_of_a_block_is_used() -> None:
    view = replica([decode("d", tpot_s=0.03)], [prompt("a", 198), prompt("b", 100)])
    assert step_of(view).tokens == {"d": 1, "a": 198, "b": 1}
    patient = prompt("b", 100, targets=Targets(50.0))
    view = replica([decode("d", tpot_s=0.03)], [prompt("a", 198), patient])
    assert step_of(view).tokens == {"d": 1, "a": 198, "b": 1}
    urgent = replica([decode("d", tpot_s=0.02)], [prompt("u", waited_s=0.98)], limits=Limits(batch_tokens=2))
    assert step_of(urgent).tokens == {"d": 1, "u": 1}
    assert step_of(replica([prompt("half", 900, done=15)], [], free_blocks=0)).tokens == {"half": 1}


def test_a_request_starts_only_with_enough_free_blocks() -> None:
    def started(free_blocks: int) -> dict[str, int]:
        return dict(step_of(replica([decode("d")], [prompt("a", 16)], free_blocks=free_blocks)).tokens)

    assert started(0) == {"d": 1}
    assert started(1) == {"d": 1, "a": 16}


def test_a_whole_prompt_that_fills_the_budget_precedes_a_long_one_that_has_time() -> None:
    patient = prompt("half", 5000, done=100, targets=Targets(50.0))
    assert step_of(replica([patient], [prompt("short", 400)])).tokens == {"short": 400}


def test_blocks_for_the_rest_of_a_begun_prompt_are_reserved() -> None:
    half = prompt("half", 900, done=16, targets=Targets(5.0))
    small = prompt("small", 30)
    assert step_of(replica([half], [small], free_blocks=56)).tokens == {"half": 400}
    assert step_of(replica([half], [small], free_blocks=58)).tokens == {"small": 30, "half": 370}


def test_no_more_start_than_there_are_slots() -> None:
    view = replica([decode("d")], [prompt("a", 50), prompt("b", 60)], limits=Limits(running=2))
    assert step_of(view).tokens == {"d": 1, "b": 60}


def test_a_chunk_is_cut_to_the_tightest_time_between_tokens() -> None:
    attending = TimeModel("attending", MODEL.terms, prefill_work_s=1e-7)
    view = replica([decode("d", tpot_s=0.03)], [prompt("a", 4000, done=1)], model=attending)
    step = step_of(view)
    tokens = step.tokens["a"]
    longer = BatchWork(1 + tokens + 1, 101, chunk_work(tokens + 1, 1))
    assert step.duration_s <= 0.03 < attending.seconds(longer)


# Exclusive allocation


def test_no_new_long_prompt_is_cut_while_another_is_unfinished() -> None:
    half, new, short = prompt("half", 5000, done=100), prompt("new", 5000), prompt("short", 50)
    view = replica([half], [new, short])
    assert step_of(view).tokens == {"half": 400}
    patient = prompt("half", 5000, done=100, targets=Targets(50.0))
    assert step_of(replica([patient], [new, short])).tokens == {"short": 50, "half": 350}
    assert step_of(replica([], [new, short])).tokens == {"new": 400}


def test_a_whole_prompt_that_time_would_cut_waits_for_the_long_one() -> None:
    attending = TimeModel("attending", MODEL.terms, prefill_work_s=1e-6)
    half, new = prompt("half", 5000, done=4000, targets=Targets(50.0)), prompt("new", 180)
    view = replica([decode("d", tpot_s=0.03), half], [new], model=attending)
    assert step_of(view).tokens == {"d": 1}
    assert step_of(replica([decode("d", tpot_s=0.03)], [new], model=attending)).tokens["new"] < 180


def test_urgent_prompts_are_added_before_others() -> None:
    waiting = [prompt("patient", 50, waited_s=0.2), prompt("urgent", 300, waited_s=0.92)]
    assert list(step_of(replica([], waiting)).tokens.items()) == [("urgent", 300), ("patient", 50)]


def test_an_urgent_long_prompt_does_not_wait() -> None:
    half, new = prompt("half", 5000, done=100), prompt("new", 500, waited_s=0.89)
    assert step_of(replica([half], [new])).tokens == {"new": 400}


def test_after_the_last_chunk_the_next_long_prompt_begins_in_the_same_batch() -> None:
    half, new = prompt("half", 500, done=400), prompt("new", 5000)
    assert step_of(replica([half], [new])).tokens == {"half": 100, "new": 300}


# The rest


def test_the_mean_chunk_is_remembered() -> None:
    policy = AccelGen()
    memory = policy.step(replica([], [prompt("a", 300)]), policy.start())[1]
    assert memory.chunk_tokens == 300
    memory = policy.step(replica([], [prompt("a", 100), prompt("b", 200)]), memory)[1]
    assert memory.chunk_tokens == pytest.approx(300 - 0.05 * 150)
    assert policy.step(replica([decode("d")], []), memory)[1].chunk_tokens == memory.chunk_tokens


def test_best_effort_is_last_until_it_has_waited_long() -> None:
    offline = prompt("offline", 390, best_effort=True, targets=Targets())
    assert list(step_of(replica([], [offline, prompt("a", 300)])).tokens.items()) == [
        ("a", 300),
        ("offline", 100),
    ]
    old = prompt("old", 390, waited_s=31, best_effort=True, targets=Targets())
    assert list(step_of(replica([], [old, prompt("a", 300)])).tokens) == ["old", "a"]


def test_decodes_draft_as_many_tokens_as_the_drafter_is_set_to() -> None:
    assert step_of(replica([decode("d")], [], speculation=Speculation(3, 0.7))).drafts == {"d": 3}


def test_all_requests_are_admitted() -> None:
    verdicts = AccelGen().admit(replica([], []), [prompt("a"), prompt("b", best_effort=True)])
    assert [type(verdict).__name__ for verdict in verdicts] == ["Admitted", "BestEffort"]
    assert AccelGen().start() == AccelGenState()
