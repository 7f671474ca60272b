"""Batches: their requests, their duration, and which requests are preempted."""

from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job, preempted
from penstock_core.domain.slo import Judge, Targets
from penstock_core.policies.slos_serve.batch_formation import form_batch
from penstock_core.policies.slos_serve.workload import Workload
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork, Term, TimeModel, chunk_work
from replica_views import kv_cache

from examples import examples

MODEL = time_model("slos-serve-opt-6.7b-a100")
LONG_CONTEXT = time_model("llama-3-8b-a100")
NOW_S = 10.0
ORDINARY_S = 4 * MODEL.prefill_seconds(1)
"""Longest ordinary batch of this engine: its fixed cost is a quarter of it."""


def prompt(
    name: str,
    tokens: int = 500,
    *,
    due_in_s: float = 2.0,
    done: int = 0,
    tpot_s: float | None = 0.1,
    best_effort: bool = False,
    at_s: float = NOW_S,
) -> Job:
    request = Request(name, "tier", at_s, tokens, 4096, Targets(1.0, tpot_s))
    job = new_job(request, 100, best_effort)._replace(due_s=NOW_S + due_in_s)
    return advance(job, done, 0, NOW_S) if done else job


def decode(
    name: str,
    context: int = 500,
    *,
    due_in_s: float = 0.1,
    tpot_s: float | None = 0.1,
    best_effort: bool = False,
    at_s: float = NOW_S - 1,
    judge: Judge = Judge.MAX,
) -> Job:
    """Return a decode whose first token was returned so that its next one is due in `due_in_s`."""
    targets = Targets(1.0, tpot_s, None, judge)
    job = new_job(Request(name, "tier", at_s, context, 4096, targets), 100, best_effort)
    return advance(job, context, 1, NOW_S + due_in_s - (tpot_s or 0.0))


def replica(
    running: list[Job],
    waiting: list[Job],
    *,
    free_blocks: int = 2000,
    limits: Limits | None = None,
    model: object = MODEL,
) -> ReplicaView:
    kv = kv_cache(running, free_blocks)
    return ReplicaView(NOW_S, NOW_S, tuple(running), tuple(waiting), kv, limits or Limits(), model)  # type: ignore[arg-type]


def batch(running: list[Job], waiting: list[Job], **bounds: object) -> Step:
    view = replica(running, waiting, **bounds)  # type: ignore[arg-type]
    return form_batch(Workload.of(view, inf))


def test_a_step_without_requests_is_empty() -> None:
    assert batch([], []) == Step({}, (), {}, 0.0)


def test_decodes_without_prompts_get_one_token_each() -> None:
    step = batch([decode("a"), decode("b")], [])
    assert dict(step.tokens) == {"a": 1, "b": 1}
    assert step.duration_s == pytest.approx(0.02493756)


def test_prefill_fills_the_longest_batch_beside_decodes() -> None:
    step = batch([decode("a", judge=Judge.MEAN)], [prompt("p", 5000)])
    assert step.tokens["a"] == 1
    assert step.duration_s <= ORDINARY_S < step.duration_s + 0.0001


def test_the_earliest_token_due_ends_the_batch() -> None:
    step = batch([decode("a", due_in_s=0.04), decode("b")], [prompt("p", 5000)])
    assert step.duration_s <= 0.04 < step.duration_s + 0.0001


def test_prefills_are_served_by_deadline() -> None:
    step = batch([], [prompt("later", 800, due_in_s=3), prompt("sooner", 800, due_in_s=1)])
    assert list(step.tokens) == ["sooner", "later"]
    assert step.tokens["sooner"] == 800
    assert step.tokens["later"] < 800


def test_a_prefill_that_finishes_shortens_the_batch_to_its_deadline() -> None:
    step = batch([], [prompt("urgent", 200, due_in_s=0.045), prompt("p", 5000)])
    assert step.tokens["urgent"] == 200
    assert step.duration_s <= 0.045 < step.duration_s + 0.0001


def test_a_batch_that_ends_at_a_deadline_has_a_margin_for_what_is_added() -> None:
    """The prompt that is due is computed all the same, even if it uses the margin."""
    careful = replace(MODEL, deadline_margin=0.25)
    urgent, behind = prompt("urgent", 200, due_in_s=0.055), prompt("p", 5000)
    step = batch([], [urgent, behind], model=careful)
    assert step.tokens["urgent"] == 200
    assert step.duration_s <= 0.055 / 1.25 < step.duration_s + 0.0001
    exact = prompt("urgent", 200, due_in_s=MODEL.prefill_seconds(200) + 1e-6)
    assert batch([], [exact, behind], model=careful).tokens == {"urgent": 200}


def test_a_long_batch_is_formed_if_ordinary_ones_would_be_late() -> None:
    just_s = MODEL.prefill_seconds(3000) + 0.001
    assert batch([], [prompt("p", 3000, due_in_s=just_s)]).tokens == {"p": 3000}
    assert batch([], [prompt("p", 3000, due_in_s=3.0)]).duration_s <= ORDINARY_S
    assert batch([], [prompt("p", 3000, due_in_s=just_s - 0.01)]).duration_s <= ORDINARY_S


def test_a_long_batch_still_ends_before_any_token_is_due() -> None:
    patient = decode("d", due_in_s=0.30, tpot_s=0.3)
    just_s = MODEL.prefill_seconds(3001) + 0.001
    assert batch([patient], [prompt("p", 3000, due_in_s=just_s)]).tokens == {"d": 1, "p": 3000}
    hurried = decode("d", due_in_s=0.15, tpot_s=0.15)
    assert batch([hurried], [prompt("p", 3000, due_in_s=just_s)]).duration_s <= 0.15


def crowd() -> list[Job]:
    """Three decodes of a tight TPOT target, and many with twice that."""
    running = [decode(f"tight{i}", due_in_s=0.05, tpot_s=0.05) for i in range(3)]
    return running + [decode(f"loose{i}", due_in_s=0.1) for i in range(60)]


def test_loose_decodes_wait_if_a_prompt_would_otherwise_be_late() -> None:
    hurried = batch(crowd(), [prompt("p", 3000, due_in_s=0.46)], free_blocks=9000)
    assert {"tight0", "tight1", "tight2"} <= hurried.tokens.keys()
    assert not [name for name in hurried.tokens if name.startswith("loose")]
    assert hurried.duration_s <= 0.05
    patient = batch(crowd(), [prompt("p", 3000, due_in_s=2.0)], free_blocks=9000)
    assert len(patient.tokens) == 64


def test_loose_decodes_run_if_prompts_leave_room() -> None:
    """The last prompt is computed before the batch is full; decodes that could wait are included."""
    last_s = MODEL.prefill_seconds(4 + 200)
    running = [decode("tight", due_in_s=0.05, tpot_s=0.05), decode("loose"), decode("free", tpot_s=None)]
    assert len(batch(running, [prompt("p", 200, due_in_s=last_s)]).tokens) == 4


def test_loose_decodes_do_not_wait_while_others_need_their_blocks() -> None:
    step = batch(crowd(), [prompt("p", 3000, due_in_s=0.46)], free_blocks=199)
    assert len([name for name in step.tokens if name.startswith("loose")]) == 60


def test_no_loose_decode_waits_past_its_due_time() -> None:
    running = [decode("tight", due_in_s=0.05, tpot_s=0.05)]
    running += [decode(f"loose{i}", due_in_s=0.07) for i in range(60)]
    assert len(batch(running, [prompt("p", 3000, due_in_s=0.46)], free_blocks=9000).tokens) == 62


def window_decode(name: str, came: int, sure: int, due_in_s: float) -> Job:
    """`came` tokens into its window, at 0.1 s a token; its answer has at least `sure` tokens."""
    targets = Targets(1.0, 0.1, None, Judge.WINDOW)
    job = new_job(Request(name, "tier", NOW_S - 9, 500, 4096, targets), 100, False, sure)
    began_s = NOW_S + due_in_s - (came + 1) * 0.1
    job = advance(job, 500, 1, began_s)
    for i in range(came):
        job = advance(job, 1, 1, began_s + i * 0.1)
    return job


def test_a_window_averages_its_tokens_if_the_answer_surely_lasts() -> None:
    """Its next token is nearly due, but the window's end is what is judged: fast batches catch up."""
    hurried = prompt("p", 3000, due_in_s=0.25)
    assert batch([window_decode("w", 2, 100, 0.03)], [hurried]).tokens == {"w": 1, "p": 3000}
    assert batch([window_decode("w", 2, 0, 0.03)], [hurried]).duration_s <= 0.03
    assert batch([window_decode("w", 9, 100, 0.03)], [hurried]).duration_s <= 0.03


def drafted(view: ReplicaView) -> dict[str, int]:
    view = replace(view, speculation=Speculation(4, 0.9))
    return dict(form_batch(Workload.of(view, inf)).drafts)


def test_decodes_draft_as_far_as_tokens_blocks_and_time_allow() -> None:
    pair = [decode("a"), decode("b")]
    assert drafted(replica(pair, [])) == {"a": 4, "b": 4}
    assert drafted(replica(pair, [], limits=Limits(batch_tokens=7))) == {"a": 4, "b": 1}
    assert drafted(replica(pair, [], limits=Limits(batch_tokens=6))) == {"a": 4}
    brim = [decode("a", 511), decode("b", 511)]
    assert drafted(replica(brim, [], free_blocks=1)) == {"a": 4}
    assert drafted(replica([decode("a", due_in_s=0.025)], [])) == {}
    ends = [decode("a")._replace(output_tokens=3)]
    assert drafted(replica(ends, [])) == {"a": 1}


def test_a_running_decode_needs_no_slot() -> None:
    """There is no block for both, so each is decided separately."""
    step = batch([decode("a"), decode("b", 512)], [], free_blocks=0, limits=Limits(running=2))
    assert (step.tokens, step.preempt) == ({"a": 1}, ())


def test_a_late_decode_leaves_prefill_half_of_the_period() -> None:
    step = batch([decode("late", due_in_s=-0.02)], [prompt("p", 5000)])
    alone_s = MODEL.prefill_seconds(1)
    assert step.tokens["late"] == 1
    assert step.duration_s == pytest.approx((alone_s + ORDINARY_S) / 2, abs=1e-4)


def test_best_effort_gets_surplus_only_within_the_ordinary_length() -> None:
    step = batch([decode("d")], [prompt("p", 100), prompt("offline", 5000, best_effort=True)])
    assert step.tokens["p"] == 100
    assert step.tokens["offline"] > 0
    assert step.duration_s <= ORDINARY_S


def test_best_effort_lengthens_batches_less_as_admitted_requests_hold_more_memory() -> None:
    """Half of them are best effort: these run only in what admitted work leaves."""
    offline = prompt("offline", 5000, best_effort=True)
    loads = [batch([decode("d", 800)], [offline], free_blocks=free).tokens for free in (2000, 330, 150, 50)]
    assert [load["d"] for load in loads] == [1] * 4
    tokens = [load.get("offline", 0) for load in loads]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[2:] == [0, 0]
    assert batch([], [prompt("offline", 100, best_effort=True)], free_blocks=8).tokens == {"offline": 100}


def test_best_effort_is_preempted_for_blocks_and_slots_of_admitted_requests() -> None:
    running = [decode("old", best_effort=True), decode("young", best_effort=True), decode("d")]
    step = batch(running, [prompt("p", 500)], free_blocks=2)
    assert step.preempt == ("young",)
    assert step.tokens == {"d": 1, "p": 500, "old": 1}
    slots = batch(running, [prompt("p", 100)], limits=Limits(running=3))
    assert slots.preempt == ("young",)


def test_a_prompt_waits_while_its_blocks_are_missing() -> None:
    step = batch([decode("d")], [prompt("large", 5000), prompt("small", 100)], free_blocks=100)
    assert step.tokens == {"d": 1, "small": 100}
    assert step.preempt == ()


def test_the_admitted_decode_with_the_most_slack_is_preempted() -> None:
    """Only wrong lengths lead here: no block is free and all requests need one."""
    running = [decode("a", 496), decode("b", 512, due_in_s=0.3), decode("c", 512, due_in_s=0.2)]
    running = [job._replace(computed_tokens=job.request.prompt_tokens) for job in running]
    step = batch(running, [], free_blocks=0)
    assert step.preempt == ("b",)
    assert step.tokens == {"a": 1, "c": 1}


def test_a_running_prefill_takes_blocks_from_later_ones_but_a_waiting_one_does_not() -> None:
    running = [prompt("head", 320, due_in_s=0.5, done=160), prompt("tail", 320, due_in_s=0.9, done=160)]
    step = batch(running, [], free_blocks=0)
    assert (step.tokens, step.preempt) == ({"head": 160}, ("tail",))
    waits = batch([decode("d", 500, due_in_s=5.0)], [prompt("p", 100)], free_blocks=0)
    assert (waits.tokens, waits.preempt) == ({"d": 1}, ())


def test_a_running_prefill_takes_the_free_blocks() -> None:
    step = batch([prompt("head", 900, due_in_s=0.5, done=160), decode("d", due_in_s=0.1)], [], free_blocks=3)
    assert step.tokens == {"d": 1, "head": 48}
    assert batch([prompt("head", 900, done=160)], [], free_blocks=0).tokens == {}


def test_the_engines_token_bound_holds_and_urgent_decodes_are_first() -> None:
    running = [decode(f"d{i}", due_in_s=0.1 - i / 1e3) for i in range(6)]
    step = batch(running, [prompt("p")], limits=Limits(batch_tokens=4))
    assert step.tokens == {"d5": 1, "d4": 1, "d3": 1, "d2": 1}


def test_a_preempted_job_prefills_prompt_and_answer() -> None:
    gone = preempted(decode("gone", 100))._replace(due_s=NOW_S + 1)
    assert batch([], [gone]).tokens == {"gone": 101}


def test_a_long_context_is_computed_even_if_one_token_exceeds_the_usual_length() -> None:
    job = prompt("book", 400_000, done=200_000, due_in_s=60.0)
    step = batch([job], [], free_blocks=20_000, model=LONG_CONTEXT)
    assert step.tokens["book"] > 0


def test_a_prompt_is_computed_even_if_one_token_exceeds_every_limit() -> None:
    """It was measured on a busy machine. Only steps correct it, so there must be some."""
    wrong = TimeModel("wrong", (Term(0.0, 1e-5),), prefill_work_s=1e-6, scale=1e5)
    for done in (0, 1, 20, 43):
        job = prompt("p", 44, done=done, due_in_s=60.0)
        step = batch([job] if done else [], [] if done else [job], model=wrong)
        assert 0 < step.tokens["p"] <= 44 - done
        one = BatchWork(1, 0, chunk_work(1, done))
        assert step.duration_s <= 2 * wrong.seconds(one) + 1e-9


def test_a_prompt_that_exceeds_every_limit_waits_for_decodes_but_not_for_best_effort() -> None:
    wrong = TimeModel("wrong", (Term(0.0, 1e-5),), prefill_work_s=1e-6, scale=1e5)
    running = [prompt("p", 44, done=20, due_in_s=60.0), prompt("o", 44, done=20, best_effort=True)]
    assert "p" in batch(running, [], model=wrong).tokens
    assert batch([*running, decode("d")], [], model=wrong).tokens.keys() == {"d"}


def random_replica(random: Random) -> ReplicaView:
    """Any state at all, also ones that admission would not have led to."""
    running, waiting = [], []
    for i in range(random.randint(0, 12)):
        kind = {
            "due_in_s": random.uniform(-0.1, 0.5),
            "tpot_s": random.choice((0.05, 0.1, None)),
            "best_effort": random.random() < 0.3,
        }
        running.append(
            decode(f"d{i}", random.randint(1, 900), **kind)  # type: ignore[arg-type]
            if random.random() < 0.7
            else prompt(f"r{i}", 900, done=random.randint(1, 890), **kind)  # type: ignore[arg-type]
        )
    for i in range(random.randint(0, 6)):
        kind = {"due_in_s": random.uniform(-0.1, 2.0), "best_effort": random.random() < 0.3}
        waiting.append(prompt(f"w{i}", random.randint(1, 3000), **kind))  # type: ignore[arg-type]
    limits = Limits(random.choice((8, 512, 8192)), random.choice((len(running), len(running) + 2, 256)))
    model = random.choice((MODEL, LONG_CONTEXT))
    view = replica(running, waiting, free_blocks=random.choice((0, 3, 60, 2000)), limits=limits, model=model)
    return replace(view, speculation=random.choice((None, None, Speculation(6, 0.8))))


def blocks_after(view: ReplicaView, step: Step) -> int:
    """Blocks held once the step has begun."""
    jobs = {job.request.id: job for job in (*view.running, *view.waiting)}
    held = {job.request.id: job.computed_tokens for job in view.running if job.request.id not in step.preempt}
    held |= {
        name: jobs[name].computed_tokens + tokens + step.drafts.get(name, 0)
        for name, tokens in step.tokens.items()
    }
    return sum(view.kv.blocks_for(tokens) for tokens in held.values())


def test_every_batch_is_within_the_engines_bounds() -> None:
    for seed in range(2500):
        view = random_replica(Random(seed))
        step = form_batch(Workload.of(view, inf))
        jobs = {job.request.id: job for job in (*view.running, *view.waiting)}
        assert sum((*step.tokens.values(), *step.drafts.values())) <= view.limits.batch_tokens, seed
        assert step.drafts.keys() <= step.tokens.keys(), seed
        assert all(0 < n <= jobs[name].pending_tokens for name, n in step.tokens.items()), seed
        assert blocks_after(view, step) <= view.kv.total_blocks, seed
        assert not set(step.preempt) & step.tokens.keys(), seed
        assert set(step.preempt) <= {job.request.id for job in view.running}, seed
        started = [name for name in step.tokens if jobs[name].computed_tokens == 0]
        assert len(view.running) - len(step.preempt) + len(started) <= max(
            view.limits.running, len(view.running)
        ), seed


def test_a_batch_includes_decodes_due_before_the_next_batch_can_end() -> None:
    for seed in range(2500):
        view = random_replica(Random(seed))
        step = form_batch(Workload.of(view, inf))
        left_out = [
            job
            for job in view.running
            if job.decoding and not job.best_effort and job.request.id not in (*step.tokens, *step.preempt)
        ]
        short = view.kv.free_blocks < len(view.running) or view.limits.batch_tokens < len(view.running)
        decodes = [job for job in view.running if job.decoding and not job.best_effort]
        context = sum(job.computed_tokens + 1 for job in decodes)
        next_end_s = view.now_s + step.duration_s + view.model.seconds(BatchWork(len(decodes), context))
        assert short or all(job.due_s >= next_end_s - 1e-6 for job in left_out), seed


def test_a_batch_is_formed_whenever_admitted_work_fits() -> None:
    for seed in range(2500):
        view = random_replica(Random(seed))
        has_decode = any(job.decoding and not job.best_effort for job in view.running)
        fits = view.kv.free_blocks > 0 or (has_decode and len(view.running) > 1)
        if fits and any(not job.best_effort for job in view.running):
            assert form_batch(Workload.of(view, inf)).tokens, seed


def cached_prompt(name: str, cached: int, left: int) -> Job:
    """A best-effort prompt of which this many tokens are cached."""
    return prompt(name, cached + left, best_effort=True)._replace(computed_tokens=cached, unheld_blocks=0)


def test_best_effort_lengthens_a_batch_only_as_far_as_memory_is_free() -> None:
    """Admitted requests hold 500 blocks. Cached prompts: freely if that is half of all, not at all if 90 %.

    Others: freely if it is nothing, not at all if it is half.
    """
    running = [decode("a", 8000, judge=Judge.MEAN)]
    alone_s = batch(running, []).duration_s

    def lengthened_s(blocks: int, job: Job) -> float:
        return batch(running, [job], free_blocks=blocks - 500).duration_s - alone_s

    cached, others = cached_prompt("o", 3000, 3000), prompt("o", 3000, best_effort=True)
    free_s = lengthened_s(1_000_000, cached)
    assert lengthened_s(1000, cached) == lengthened_s(2000, cached) == free_s
    assert lengthened_s(714, cached) == pytest.approx(free_s / 2, rel=0.02)
    assert lengthened_s(1_000_000, others) == pytest.approx(free_s, rel=0.02)
    assert lengthened_s(2000, others) == pytest.approx(free_s / 2, rel=0.02)
    assert lengthened_s(1000, others) == 0
    short = cached_prompt("short", 112, 100)
    assert "short" in batch(running, [short], free_blocks=57).tokens
    assert "short" not in batch(running, [short], free_blocks=55).tokens


def test_only_a_waiting_prompt_of_which_half_is_cached_is_one_that_is_cached() -> None:
    running = [decode("a", 8000, judge=Judge.MEAN)]
    half, less = cached_prompt("half", 112, 112), cached_prompt("less", 112, 113)
    begun = prompt("begun", 225, done=113, best_effort=True)
    assert set(batch(running, [half, less], free_blocks=500).tokens) == {"a", "half"}
    assert set(batch([*running, begun], [half], free_blocks=480).tokens) == {"a", "half"}


def test_memory_that_only_best_effort_holds_does_not_limit_it() -> None:
    running, offline = [decode("a", 8000, judge=Judge.MEAN)], [cached_prompt("o", 112, 100)]
    theirs = decode("b", 8000, judge=Judge.MEAN, best_effort=True)
    tight = replica([*running, theirs], offline, free_blocks=25)
    shared = replace(tight, kv=replace(tight.kv, shared_blocks={"b": 500}))
    assert "o" in form_batch(Workload.of(tight, inf)).tokens
    assert "o" not in form_batch(Workload.of(shared, inf)).tokens


def any_crowd(random: Random) -> tuple[list[Job], list[Job], list[Job], list[Job]]:
    """Accepted jobs and best effort: which run, and which wait."""
    running = [decode(f"d{i}", random.randint(1, 900)) for i in range(random.randint(0, 6))]
    running += [prompt(f"r{i}", 800, done=random.randint(1, 700)) for i in range(random.randint(0, 2))]
    waiting = [prompt(f"w{i}", random.randint(1, 3000)) for i in range(random.randint(0, 3))]
    their_running = [
        decode(f"bd{i}", random.randint(1, 900), best_effort=True) for i in range(random.randint(0, 4))
    ]
    their_waiting = [
        prompt(f"bw{i}", random.randint(1, 3000), best_effort=True) for i in range(random.randint(1, 3))
    ]
    return running, waiting, their_running, their_waiting


@examples(200)
@given(st.integers(0, 1 << 20))
def test_best_effort_never_delays_admitted_jobs_under_memory_pressure(seed: int) -> None:
    """Each gets the tokens that it would get alone, and none is preempted for others."""
    random = Random(seed)
    running, waiting, their_running, their_waiting = any_crowd(random)
    free = random.randint(0, 300)
    theirs = sum(-(-job.computed_tokens // 16) for job in their_running)
    alone = batch(running, waiting, free_blocks=free + theirs)
    beside = batch([*running, *their_running], [*waiting, *their_waiting], free_blocks=free)
    accepted = {job.request.id for job in (*running, *waiting)}
    assert {name: tokens for name, tokens in beside.tokens.items() if name in accepted} == alone.tokens
    assert set(beside.preempt) & accepted == set(alone.preempt)
