"""The ledger of the engine's requests, without an engine."""

from types import SimpleNamespace
from typing import Any

import pytest
from penstock_core.domain.engine_fields import to_fields
from penstock_core.domain.request import Job, Request, advance, new_job, preempted, promoted
from penstock_core.domain.slo import Targets
from penstock_vllm.ledger import EngineLedger, HeldRequest


def asked(name: str = "a", prompt: int = 100, **other: Any) -> Any:
    """A request of vLLM's that has just come."""
    fields: dict[str, Any] = {
        "request_id": name,
        "num_prompt_tokens": prompt,
        "max_tokens": 50,
        "num_computed_tokens": 0,
        "num_in_flight_tokens": 0,
        "num_stale_output_tokens": 0,
        "num_output_tokens": 0,
        "drop_stale_output": False,
        "resumable": False,
        "sampling_params": SimpleNamespace(extra_args=None),
    }
    return SimpleNamespace(**(fields | other))


def fields(name: str, *, best_effort: bool = False, spent_s: float = 0.0) -> Any:
    request = Request(name, "chat", 0.0, 100, 50, Targets(1.0, 0.1))
    job = new_job(request, 30, best_effort)
    return SimpleNamespace(extra_args=to_fields(job, spent_s))


def names(held: list[HeldRequest]) -> list[str]:
    return [one.job.request.id for one in held]


def of_jobs(jobs: tuple[Job, ...]) -> list[str]:
    return [job.request.id for job in jobs]


def return_tokens(held: HeldRequest, tokens: int) -> None:
    request: Any = held.request
    request.num_output_tokens = tokens


def test_a_request_is_recorded_by_the_fields_that_it_carries() -> None:
    ledger = EngineLedger()
    held = ledger.add(asked("cmpl-1", sampling_params=fields("r", spent_s=0.25)), 10.0, blocked=False)
    job = held.job
    assert (job.request.id, job.request.tier, job.request.arrival_s) == ("r", "chat", 9.75)
    assert (job.request.prompt_tokens, job.request.max_output_tokens, job.output_tokens) == (100, 50, 30)
    assert ledger.by_id == {"cmpl-1": held} and ledger.by_name == {"r": held}
    assert (held.planned, held.running, held.blocked, held.drafts_in_progress) == (True, False, False, 0)
    assert ledger.waiting == [held] == ledger.startable
    assert (
        ledger.changes,
        ledger.membership,
        ledger.uniform_steps,
        ledger.preemptions,
        ledger.unplanned,
    ) == (
        1,
        1,
        0,
        0,
        0,
    )
    assert ledger.add(held.request, 11.0, blocked=True) is held
    assert (ledger.changes, held.blocked) == (1, False)


def test_unreadable_fields_mean_best_effort_and_pooling_has_one_result() -> None:
    ledger = EngineLedger()
    junk = SimpleNamespace(extra_args={"penstock_ttft_s": "soon"})
    held = ledger.add(asked("x", sampling_params=junk), 3.0, blocked=False)
    assert (held.job.request.id, held.job.request.tier, held.job.best_effort) == ("x", "direct", True)
    pooling = ledger.add(asked("p", sampling_params=None, max_tokens=77), 3.0, blocked=False)
    assert pooling.job.request.max_output_tokens == 1
    assert ledger.add(asked("z", max_tokens=0), 3.0, blocked=False).job.request.max_output_tokens == 1


def test_a_name_in_use_gets_the_next_number() -> None:
    ledger = EngineLedger()
    both = [ledger.add(asked(name, sampling_params=fields("r")), 1.0, blocked=False) for name in "ab"]
    assert names(both) == ["r", "r~1"]
    assert set(ledger.by_name) == {"r", "r~1"}


def test_waiting_requests_are_ordered_by_arrival_and_vllms_own_id() -> None:
    ledger = EngineLedger()
    for name, at_s in (("late", 3.0), ("b", 2.0), ("a", 2.0), ("early", 1.0)):
        ledger.add(asked(name), at_s, blocked=name == "b")
    assert names(ledger.waiting) == ["early", "a", "b", "late"]
    assert of_jobs(ledger.ready) == ["early", "a", "late"]
    assert ledger.ready is ledger.ready
    ledger.unblock(lambda held: False)
    assert names(list(ledger.blocked)) == ["b"]
    ledger.unblock(lambda held: True)
    assert of_jobs(ledger.ready) == ["early", "a", "b", "late"]
    assert not ledger.blocked


def test_a_starting_request_holds_its_cached_blocks() -> None:
    ledger = EngineLedger()
    held = ledger.add(asked(), 1.0, blocked=True)
    held.request.num_computed_tokens, held.request.num_in_flight_tokens = 60, 20
    ledger.start(held)
    assert (held.running, held.blocked, held.job.computed_tokens) == (True, False, 40)
    assert ledger.waiting == [] and not ledger.blocked
    assert (ledger.changes, ledger.membership) == (2, 2)
    held.request.num_computed_tokens = 80
    ledger.start(held)
    assert held.job.computed_tokens == 40


def test_requests_that_may_start_are_known_after_every_change() -> None:
    ledger = EngineLedger()

    def ready() -> list[str]:
        return of_jobs(ledger.ready)

    first = ledger.add(asked("a"), 1.0, blocked=False)
    assert ready() == ["a"]
    second = ledger.add(asked("b"), 1.0, blocked=False)
    assert ready() == ["a", "b"]
    ledger.start(first)
    assert ready() == ["b"]
    ledger.preempt(first)
    assert ready() == ["a", "b"]
    ledger.leave_to_vllm(second)
    assert ready() == ["a"]
    ledger.start(second)
    ledger.preempt(second)
    assert ready() == ["a", "b"]
    ledger.drop(second)
    assert ready() == ["a"]


def started(ledger: EngineLedger, *requests: Any) -> list[HeldRequest]:
    held = [ledger.add(one, 1.0, blocked=False) for one in requests]
    for one in held:
        ledger.start(one)
    return held


@pytest.mark.parametrize(
    ("stale", "dropped", "blocked"), [(0, False, False), (1, False, True), (1, True, False)]
)
def test_a_preempted_request_waits_and_is_blocked_while_its_tokens_are_in_progress(
    stale: int, dropped: bool, blocked: bool
) -> None:
    ledger = EngineLedger()
    (held,) = started(ledger, asked(num_computed_tokens=100))
    held.drafts_in_progress = 3
    held.request.num_stale_output_tokens, held.request.drop_stale_output = stale, dropped
    before = ledger.membership
    ledger.preempt(held)
    assert (held.running, held.blocked, held.drafts_in_progress) == (False, blocked, 0)
    assert (held.job.computed_tokens, ledger.preemptions, ledger.membership) == (0, 1, before + 1)
    assert ledger.waiting == [held] and ledger.blocked == ({held} if blocked else set())
    assert of_jobs(ledger.ready) == ([] if blocked else ["a"])


def test_a_request_that_ends_is_removed_once_whether_it_ran_or_waited() -> None:
    ledger = EngineLedger()
    (ran,) = started(ledger, asked("ran"))
    waited = ledger.add(asked("waited"), 1.0, blocked=True)
    other = ledger.add(asked("session", resumable=True), 1.0, blocked=False)
    assert (ledger.unplanned, of_jobs(ledger.ready)) == (1, [])
    changes = ledger.changes
    for held in (ran, waited, other, other):
        ledger.drop(held)
    assert not (ledger.by_id or ledger.by_name or ledger.waiting or ledger.blocked)
    assert (ledger.unplanned, ledger.changes) == (0, changes + 3)


def test_a_request_that_loads_its_kv_is_not_planned_until_it_runs() -> None:
    ledger = EngineLedger()
    held = ledger.add(asked(), 1.0, blocked=False)
    assert of_jobs(ledger.ready) == ["a"]
    ledger.leave_to_vllm(held)
    assert (held.planned, ledger.unplanned, ledger.ready, ledger.membership) == (False, 1, (), 2)
    ledger.leave_to_vllm(held)
    assert (ledger.unplanned, ledger.membership) == (1, 2)
    ledger.start(held)
    assert (held.planned, ledger.unplanned) == (True, 0)
    (session,) = started(ledger, asked("s", resumable=True))
    assert (session.planned, ledger.unplanned) == (False, 1)


def test_a_promotion_changes_only_the_requests_admission() -> None:
    ledger = EngineLedger()
    held = ledger.add(asked(sampling_params=fields("r", best_effort=True)), 1.0, blocked=False)
    assert ledger.ready[0].best_effort
    ledger.promote(held, promoted(held.job)._replace(output_tokens=7))
    assert (held.job.best_effort, held.job.output_tokens) == (False, 30)
    assert not ledger.ready[0].best_effort
    assert ledger.membership == 2


def test_after_a_step_jobs_have_the_state_of_vllms_requests() -> None:
    ledger = EngineLedger()
    (held, other) = started(ledger, asked("a"), asked("b"))
    before = ledger.changes
    held.request.num_computed_tokens, held.request.num_in_flight_tokens = 70, 10
    ledger.advance(["a", "gone"], 2.0)
    assert (held.job.computed_tokens, held.job.generated_tokens) == (60, 0)
    held.request.num_computed_tokens, held.request.num_in_flight_tokens = 101, 1
    return_tokens(held, 1)
    ledger.advance(["a"], 2.5)
    assert (held.job.computed_tokens, held.job.generated_tokens, held.job.anchor) == (100, 1, (2.5, 1))
    assert (other.job.computed_tokens, ledger.changes, ledger.membership) == (0, before + 2, 4)
    held.request.num_computed_tokens, held.request.num_in_flight_tokens = 110, 6
    held.request.num_stale_output_tokens = 2
    ledger.advance(["a"], 3.0)
    assert held.job.computed_tokens == 106


def test_requests_scheduled_by_vllm_are_recorded_without_times() -> None:
    ledger = EngineLedger()
    (session,) = started(ledger, asked("s", resumable=True))
    session.request.num_computed_tokens = 101
    return_tokens(session, 2)
    ledger.advance(["s"], 2.0)
    assert (session.job.computed_tokens, session.job.generated_tokens, session.job.anchor) == (101, 2, None)
    (held,) = started(ledger, asked("a", num_computed_tokens=100))
    ledger.preempt(held)
    return_tokens(held, 1)
    assert of_jobs(ledger.ready) == ["a"]
    ledger.advance(["a"], 3.0)
    assert (held.job.computed_tokens, held.job.generated_tokens, held.job.anchor) == (0, 1, (3.0, 1))
    assert ledger.ready[0] is held.job


def test_a_request_that_loads_its_kv_holds_no_blocks_until_it_runs() -> None:
    ledger = EngineLedger()
    held = ledger.add(asked(num_computed_tokens=60), 1.0, blocked=False)
    ledger.leave_to_vllm(held)
    ledger.advance(["a"], 2.0)
    assert (held.job.computed_tokens, held.job.generated_tokens) == (0, 0)


def test_uniform_steps_are_recorded_and_settled_together() -> None:
    ledger = EngineLedger()
    running = started(ledger, asked("a", num_computed_tokens=100), asked("b", num_computed_tokens=100))
    changes = ledger.changes
    for one in running:
        one.job = advance(one.job, 0, 1, 1.0)
    ledger.advance_all(running, 2.0)
    ledger.advance_all(running, 2.5)
    assert (ledger.uniform_steps, ledger.changes) == (2, changes)
    assert [one.job.generated_tokens for one in running] == [1, 1]
    ledger.settle()
    assert [(one.job.generated_tokens, one.job.computed_tokens) for one in running] == [(3, 102)] * 2
    ledger.settle()
    assert [one.job.generated_tokens for one in running] == [3, 3]
    ledger.advance_all(running, 3.0)
    ledger.drop(running[0])
    assert running[1].job.generated_tokens == 4
    ledger.advance_all(running[1:], 3.5)
    ledger.advance(["other"], 4.0)
    assert running[1].job.generated_tokens == 5


def test_draft_tokens_count_while_their_step_is_in_progress() -> None:
    ledger = EngineLedger()
    held, preempted = started(ledger, asked("a"), asked("b"))
    ledger.begin_drafts({"a": [1, 2], "b": [3]})
    ledger.begin_drafts({"a": [4]})
    assert (held.drafts_in_progress, preempted.drafts_in_progress) == (3, 1)
    ledger.preempt(preempted)
    ledger.end_drafts({"a": [1, 2], "b": [3], "ended meanwhile": [5]})
    assert (held.drafts_in_progress, preempted.drafts_in_progress) == (1, 0)


def test_the_ledger_is_restored_from_vllms_own_requests() -> None:
    ledger = EngineLedger()
    known, gone = (ledger.add(asked(name), 1.0, blocked=True) for name in ("known", "gone"))
    ledger.leave_to_vllm(known)
    known.request.num_computed_tokens = 101
    return_tokens(known, 1)
    back = asked("back", num_computed_tokens=50, num_output_tokens=0)
    changes = ledger.changes
    ledger.restore(
        [known.request, asked("new", num_computed_tokens=40), asked("s", resumable=True)],
        [back, asked("stuck")],
        {"new": 3},
        lambda one: one.request_id != "stuck",
        9.0,
    )
    by_id = ledger.by_id
    assert (
        set(by_id) == {"known", "new", "s", "back", "stuck"} and gone.request.request_id not in ledger.by_name
    )
    assert [by_id[name].running for name in ("known", "new", "s", "back", "stuck")] == [True] * 3 + [
        False
    ] * 2
    assert (by_id["known"].planned, by_id["s"].planned, ledger.unplanned) == (True, False, 1)
    assert (by_id["known"].job.request.arrival_s, by_id["known"].job.generated_tokens) == (1.0, 1)
    assert by_id["known"].job.computed_tokens == 101
    assert (by_id["new"].drafts_in_progress, by_id["known"].drafts_in_progress) == (3, 0)
    assert (by_id["new"].job.computed_tokens, by_id["new"].job.request.arrival_s) == (40, 9.0)
    assert by_id["back"].job.computed_tokens == 0
    assert names(ledger.waiting) == ["back", "stuck"] and names(list(ledger.blocked)) == ["stuck"]
    assert of_jobs(ledger.ready) == ["back"]
    assert (ledger.changes, ledger.membership) == (changes + 1, 4)


def test_a_job_recorded_again_may_be_behind_its_predicted_state() -> None:
    ledger = EngineLedger()
    (held,) = started(ledger, asked(num_computed_tokens=103))
    held.job = held.job._replace(generated_tokens=5)
    return_tokens(held, 3)
    ledger.restore([held.request], [], {}, lambda one: True, 4.0)
    job = ledger.by_id["a"].job
    assert (job.computed_tokens, job.generated_tokens) == (103, 3)
    left = ledger.by_id["a"]
    left.planned = False
    ledger.restore([], [held.request], {}, lambda one: True, 5.0)
    assert (ledger.by_id["a"].planned, ledger.unplanned, ledger.ready) == (False, 1, ())
    assert ledger.by_id["a"].job == preempted(job)


def test_tokens_of_steps_in_progress_are_not_in_memory() -> None:
    def known(computed: int, in_flight: int, stale: int) -> int:
        request = asked(
            num_computed_tokens=computed, num_in_flight_tokens=in_flight, num_stale_output_tokens=stale
        )
        return EngineLedger().add(request, 0.0, blocked=False).known_computed_tokens

    assert (known(100, 0, 0), known(100, 30, 0), known(100, 30, 10), known(5, 9, 0)) == (100, 70, 80, 0)
