"""The annealing policy on one replica: which requests start, which wait, and what is learned."""

from dataclasses import replace
from math import inf

import pytest
from penstock_core.domain.policy import Knobs, Step
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job, preempted
from penstock_core.domain.slo import Targets
from penstock_core.domain.verdict import Admitted
from penstock_core.policies import build
from penstock_core.policies.annealing.capacity import fitting, room
from penstock_core.policies.annealing.latency import latency_of
from penstock_core.policies.annealing.plan_tables import NO_RUNNING_REQUESTS, PlanInput
from penstock_core.policies.annealing.policy import Annealing
from penstock_core.policies.annealing.state import AnnealingState, updated
from penstock_core.policies.annealing.window import deadline_s, overdue, plan_input, window
from penstock_core.timing.builtin_models import time_model
from replica_views import kv_cache

MODEL = time_model("slos-serve-opt-6.7b-a100")  # a decode step takes 25 ms, 1000 prompt tokens some 95 ms
LATENCY = latency_of(MODEL)
CHAT, CODE = Targets(10.0, 0.05), Targets(e2e_s=30.0)


def prompt(
    name: str,
    targets: Targets = CHAT,
    *,
    tokens: int = 100,
    answer: int = 50,
    at_s: float = 0.0,
    best_effort: bool = False,
) -> Job:
    return new_job(Request(name, "tier", at_s, tokens, 4096, targets), answer, best_effort)


def decode(name: str, targets: Targets = CHAT, answer: int = 50, best_effort: bool = False) -> Job:
    return advance(prompt(name, targets, answer=answer, best_effort=best_effort), 100, 1, 0.0)


def replica(
    running: list[Job],
    waiting: list[Job],
    now_s: float = 0.0,
    free_blocks: int = 500,
    limits: Limits | None = None,
) -> ReplicaView:
    kv = kv_cache(running, free_blocks)
    return ReplicaView(now_s, now_s, tuple(running), tuple(waiting), kv, limits or Limits(), MODEL)


def first_step(view: ReplicaView, policy: Annealing | None = None) -> Step:
    policy = policy or Annealing()
    return policy.step(view, policy.start())[0]


def test_the_policy_is_built_by_name_and_admits_all() -> None:
    policy = build("annealing", Knobs(aging_s=7.0))
    assert policy == Annealing(aging_s=7.0)
    assert [type(verdict) for verdict in policy.admit(replica([], []), [prompt("a")])] == [Admitted]


def test_with_one_slot_an_urgent_request_precedes_an_earlier_one() -> None:
    relaxed, urgent = prompt("relaxed", Targets(10.0)), prompt("urgent", Targets(0.5, 0.05), at_s=0.1)
    view = replica([], [relaxed, urgent], now_s=0.2, limits=Limits(running=1))
    assert list(first_step(view).tokens) == ["urgent"]


def test_a_request_that_is_late_in_any_case_is_served_last() -> None:
    lost, fine = prompt("lost", Targets(e2e_s=0.5), answer=40), prompt("fine", Targets(e2e_s=1.5), answer=40)
    view = replica([], [lost, fine], limits=Limits(running=1))
    assert list(first_step(view).tokens) == ["fine"]


def test_running_decodes_continue_and_new_prompts_fill_the_batch() -> None:
    view = replica([decode("a")], [prompt("b"), prompt("c")], limits=Limits(batch_tokens=151))
    assert first_step(view).tokens == {"a": 1, "b": 100, "c": 50}


def test_requests_of_a_first_batch_without_tokens_start_next() -> None:
    policy, limits = Annealing(), Limits(batch_tokens=100)
    step, memory = policy.step(replica([], [prompt("a"), prompt("b")], limits=limits), policy.start())
    assert step.tokens == {"a": 100}
    view = replica([advance(prompt("a"), 100, 1, 0.1)], [prompt("b")], now_s=0.1, limits=limits)
    step, memory = policy.step(view, memory)
    assert step.tokens == {"a": 1, "b": 99}
    assert memory.plans == 1


def test_a_request_that_would_make_a_running_one_late_does_not_start() -> None:
    tight = decode("tight", Targets(10.0, 0.026), answer=20)
    view = replica([tight], [prompt("b")], now_s=0.01)
    step, memory = Annealing().step(view, AnnealingState())
    assert (step.tokens, memory.open) == ({"tight": 1}, True)
    late = replica([tight], [prompt("b")], now_s=5.0)
    assert first_step(late).tokens == {"tight": 1, "b": 100}


def test_a_new_request_waits_for_memory_until_its_peak_fits() -> None:
    view = replica([decode("a", answer=400)], [prompt("b", answer=400)], free_blocks=40)
    assert first_step(view).tokens == {"a": 1}
    assert first_step(replica([decode("a", answer=400)], [prompt("b", answer=400)])).tokens == {
        "a": 1,
        "b": 100,
    }


def test_an_empty_replica_always_starts_a_request() -> None:
    view = replica([], [prompt("huge", tokens=700, answer=4000)], free_blocks=45)
    assert first_step(view).tokens == {"huge": 700}


def test_best_effort_is_served_last_and_preempted_first() -> None:
    offline = prompt("offline", at_s=-1.0, best_effort=True)
    assert list(first_step(replica([], [offline, prompt("a")], limits=Limits(100))).tokens) == ["a"]
    assert list(first_step(replica([], [offline])).tokens) == ["offline"]
    running = [decode("a"), decode("spare", best_effort=True)]
    full = replica(running, [prompt("b", tokens=60, answer=5)], free_blocks=1)
    step = first_step(full)
    assert (step.preempt, list(step.tokens)) == (("spare",), ["a", "b"])


def test_the_oldest_request_is_served_next_once_it_is_far_too_late() -> None:
    policy = Annealing(aging_s=30.0)
    lost = prompt("lost", CODE, tokens=900, answer=2000)
    others = [prompt(f"c{i}", at_s=60.0) for i in range(3)]
    patient = replica([], [lost, *others], now_s=60.0, limits=Limits(running=1))
    assert list(first_step(patient, policy).tokens) == ["c0"]
    view = replica([], [lost, *others], now_s=60.1, limits=Limits(running=1))
    step, memory = policy.step(view, policy.start())
    assert (list(step.tokens), memory.moving) == (["lost"], "lost")
    second = prompt("second", CODE, at_s=1.0)
    step, memory = policy.step(replica([decode("lost", CODE)], [second, *others], now_s=100.0), memory)
    assert memory.moving == "lost"
    memory = policy.step(replica([], [second, *others], now_s=101.0), memory)[1]
    assert memory.moving == "second"


def test_late_best_effort_is_served_as_if_it_had_an_slo() -> None:
    policy = Annealing(aging_s=30.0)
    view = replica([], [prompt("offline", best_effort=True), prompt("a", at_s=31.0)], 31.0, 10)
    step, memory = policy.step(view, policy.start())
    assert list(step.tokens) == ["offline"]
    moving = replica([decode("offline", best_effort=True)], [prompt("a", at_s=31.0)], 31.1, free_blocks=2)
    assert policy.step(moving, memory)[0].preempt == ()


def test_no_request_starts_in_a_step_that_preempts() -> None:
    full = [advance(prompt(name, tokens=96), 96, 1, 0.0) for name in "ab"]
    step = first_step(replica(full, [prompt("c", tokens=10)], free_blocks=0))
    assert (step.preempt, list(step.tokens)) == (("b",), ["a"])


def test_the_queue_is_planned_again_only_when_it_changes() -> None:
    policy, memory = Annealing(), AnnealingState()
    queue = [prompt("b"), prompt("c")]
    plans = []
    for view in (
        replica([decode("a")], queue, limits=Limits(running=2)),
        replica([decode("a"), decode("b")], queue[1:], limits=Limits(running=2)),
        replica([decode("a"), decode("b")], [*queue[1:], prompt("d")], limits=Limits(running=2)),
        replica([decode("b")], [*queue[1:], prompt("d")], limits=Limits(running=2)),
    ):
        memory = policy.step(view, memory)[1]
        plans.append(memory.plans)
    assert plans == [1, 1, 2, 3]


def test_the_next_batch_starts_without_a_change_of_the_queue() -> None:
    policy, tight = Annealing(), Targets(0.1, 0.1)
    queue = [prompt("a", tight, tokens=900), prompt("b", Targets(9.0, 0.1), tokens=900)]
    running = [decode(f"r{i}", Targets(9.0, 0.2)) for i in range(30)]
    step, memory = policy.step(replica(running, queue), policy.start())
    assert ("a" in step.tokens, "b" in step.tokens) == (True, False)
    assert 0 < memory.next_s < 0.2
    started = [*running, advance(queue[0], 900, 1, 0.1)]
    early, memory = policy.step(replica(started, queue[1:], memory.next_s - 0.001), memory)
    assert "b" not in early.tokens
    assert "b" in policy.step(replica(started, queue[1:], memory.next_s), memory)[0].tokens


def test_finished_answers_teach_their_share_of_the_prediction() -> None:
    long = decode("a", answer=100)._replace(generated_tokens=39)
    memory = updated(
        updated(AnnealingState(), replica([decode("a", answer=100)], [prompt("b")])), replica([long], [])
    )
    assert memory.shares == {}
    memory = updated(memory, replica([], [prompt("c")]))
    assert memory.share("tier").mean == pytest.approx((1.0 + 0.4) / 2)
    assert memory.share("other").mean == 1.0
    assert updated(memory, replica([], [prompt("c")])).open


def test_a_two_token_answer_teaches_twice_its_prediction_of_one() -> None:
    memory = updated(AnnealingState(), replica([], [prompt("a", answer=1)]))
    memory = updated(updated(memory, replica([decode("a", answer=1)], [])), replica([], []))
    assert memory.share("tier").mean == pytest.approx((1.0 + 2.0) / 2)


def test_answers_that_finish_together_teach_in_the_order_of_their_jobs() -> None:
    jobs = [decode(f"job {place}", answer=7 * place + 3) for place in range(40)]
    together = updated(updated(AnnealingState(), replica(jobs, [])), replica([], []))
    one_by_one = updated(AnnealingState(), replica(jobs, []))
    for place in range(40):
        one_by_one = updated(one_by_one, replica(jobs[place + 1 :], []))
    assert together.share("tier") == one_by_one.share("tier")


def test_a_preempted_job_causes_a_new_plan() -> None:
    memory = replace(updated(AnnealingState(), replica([decode("a")], [])), open=False)
    assert not updated(memory, replica([decode("a")], [])).open
    assert updated(memory, replica([], [preempted(decode("a"))])).open


def test_the_window_has_deadlines_to_come_first_and_then_the_oldest() -> None:
    queue = [
        prompt("late-2", at_s=-11.0),
        prompt("late-1", at_s=-12.0),
        prompt("soon", Targets(0.5)),
        prompt("later", CODE),
        prompt("free", Targets()),
        prompt("offline", best_effort=True),
        preempted(decode("again", Targets(10.0, 0.1))),
    ]
    names = [job.request.id for job in window(queue, 6, 0.01)]
    assert names == ["again", "soon", "later", "free", "late-1", "late-2"]
    assert [job.request.id for job in window(queue, 1, 0.01)] == ["again"]


@pytest.mark.parametrize(
    ("job", "due_s"),
    [
        (prompt("chat", at_s=1.0), 11.0),
        (prompt("code", CODE, at_s=1.0), 31.0),
        (prompt("free", Targets()), inf),
        (decode("on", Targets(10.0, 0.1)), 0.1),
    ],
    ids=lambda value: value.request.id if isinstance(value, Job) else None,
)
def test_a_deadline_is_the_last_time_at_which_targets_can_be_met(job: Job, due_s: float) -> None:
    assert deadline_s(job) == pytest.approx(due_s)


def test_a_request_without_a_deadline_is_overdue_by_its_wait() -> None:
    free, offline = prompt("free", Targets(), at_s=2.0), prompt("offline", at_s=1.0, best_effort=True)
    assert overdue([free, offline, prompt("chat")], 30.0, 30.0) is None
    assert overdue([free, offline, prompt("chat")], 31.5, 30.0) is offline
    assert overdue([free, prompt("chat")], 39.0, 30.0) is free


def test_the_demand_of_a_job_follows_from_its_targets_and_predicted_length() -> None:
    assert plan_input(prompt("chat", at_s=1.0), 3.0, 1.0) == PlanInput(100, 49, 2.0, 10.0, 0.05, inf)
    assert plan_input(prompt("half"), 0.0, 0.5).decode_tokens == 24
    assert plan_input(prompt("one", answer=4), 0.0, 0.1).decode_tokens == 0
    thinking = Targets(5.0, 0.05, 60.0, answer_tpot_s=0.03)
    assert plan_input(prompt("think", thinking), 0.0, 1.0) == PlanInput(100, 49, 0.0, 5.0, 0.03, 60.0)
    assert plan_input(prompt("offline", best_effort=True), 0.0, 1.0) == PlanInput(100, 49)


def test_a_running_job_demands_its_last_token_by_its_deadline() -> None:
    running = advance(prompt("a", at_s=1.0), 100, 1, 3.0)
    assert plan_input(running, 4.0, 1.0) == pytest.approx((100, 49, 3.0, inf, inf, 2.0 + 49 * 0.05))
    assert plan_input(preempted(running), 4.0, 1.0) == pytest.approx(
        (101, 48, 3.0, inf, inf, 2.0 + 49 * 0.05)
    )


def test_an_empty_replica_has_room_for_all() -> None:
    assert room(LATENCY, [], [], 100.0, 5) == (5, NO_RUNNING_REQUESTS)
    assert room(LATENCY, [decode("a")], [plan_input(decode("a"), 0.0, 1.0)], 100.0, 0) == (
        0,
        NO_RUNNING_REQUESTS,
    )


def test_room_ends_when_the_first_running_request_would_be_late() -> None:
    running = [decode("a", Targets(10.0, 0.05), answer=20), decode("free", Targets())]
    inputs = [plan_input(job, 0.0, 1.0) for job in running]
    free = room(LATENCY, running, inputs, 1000.0, 10)
    assert 0 < free.places < 10
    assert (free.running.count, free.running.met) == (2, 2)
    assert list(free.running.latency_s) == sorted(free.running.latency_s)
    assert room(LATENCY, running, inputs, 10.0, 10).places > free.places


def test_a_running_request_just_meets_its_target_and_no_other_makes_it_late() -> None:
    chunk = advance(prompt("a", tokens=500), 100, 0, 0.0)
    prefill_s, decode_s = LATENCY.prefill_s(1.0, 400.0), LATENCY.decode_s(1.0, 400.0, 10.0)
    for target in (
        {"ttft_s": 2.0 + prefill_s},
        {"e2e_s": 2.0 + prefill_s + decode_s},
        {"tpot_s": decode_s / 10},
    ):
        free = room(LATENCY, [chunk], [PlanInput(400, 10, 2.0, **target)], 300.0, 3)
        assert (free.places, free.running.met) == (0, 1), target


def test_capacity_accounts_for_ttft_and_tpot_of_prompts_in_progress() -> None:
    chunk = advance(prompt("a", Targets(0.2, 0.1), tokens=500), 100, 0, 0.0)
    inputs = [plan_input(chunk, 0.0, 1.0)]
    assert room(LATENCY, [chunk], inputs, 300.0, 10).places < room(LATENCY, [chunk], inputs, 10.0, 10).places
    hasty = advance(prompt("a", Targets(9.0, 0.02502), tokens=500), 100, 0, 0.0)
    assert room(LATENCY, [hasty], [plan_input(hasty, 0.0, 1.0)], 10.0, 10).places < 10


def test_memory_is_counted_at_its_peak_and_a_request_that_does_not_fit_is_skipped() -> None:
    kv = KvCache(20, 20, 16)
    large, small = prompt("large", tokens=200, answer=60), prompt("small", tokens=60, answer=10)
    assert fitting(kv, [], [large, large, small]) == [large, small]
    assert fitting(kv, [large], [large]) == []
    assert fitting(kv, [], [prompt("whole", tokens=100, answer=9999)]) != []


def test_running_best_effort_continues_beside_admitted_requests() -> None:
    view = replica([decode("a"), decode("spare", best_effort=True)], [])
    assert first_step(view).tokens == {"a": 1, "spare": 1}
