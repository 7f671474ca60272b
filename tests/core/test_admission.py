"""Admission at one replica: verdicts, reasons, and the admitted requests that constrain them."""

from dataclasses import replace
from math import inf

import pytest
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.domain.verdict import Admitted, BestEffort, Reason, Rejected, Verdict
from penstock_core.policies.slos_serve.feasibility import Feasible, feasible
from penstock_core.policies.slos_serve.policy import SlosServe
from penstock_core.policies.slos_serve.selection import MOST_CANDIDATES
from penstock_core.policies.slos_serve.workload import Workload
from penstock_core.timing.builtin_models import time_model

MODEL = time_model("slos-serve-opt-6.7b-a100")


def asks(
    name: str,
    prompt: int = 500,
    output: int = 100,
    *,
    ttft_s: float | None = 1.0,
    tpot_s: float | None = 0.1,
    at_s: float = 0.0,
    value: float = 1.0,
    best_effort: bool = False,
) -> Job:
    targets = Targets(ttft_s, tpot_s)
    return new_job(Request(name, "tier", at_s, prompt, 4096, targets, value), output, best_effort)


def decodes(
    name: str, prompt: int = 500, output: int = 100, *, tpot_s: float | None = 0.1, at_s: float = 0.0
) -> Job:
    return advance(asks(name, prompt, output, tpot_s=tpot_s, at_s=at_s), prompt, 1, at_s)


def replica(
    running: tuple[Job, ...] = (),
    waiting: tuple[Job, ...] = (),
    *,
    kv_tokens: int = 43296,
    limits: Limits | None = None,
    now_s: float = 0.0,
    busy_s: float = 0.0,
) -> ReplicaView:
    total = kv_tokens // 16
    held = sum(-(-job.computed_tokens // 16) for job in running)
    kv = KvCache(total, total - held, 16)
    return ReplicaView(now_s, now_s + busy_s, running, waiting, kv, limits or Limits(), MODEL)


def answer(view: ReplicaView, *new: Job) -> list[Verdict]:
    return SlosServe(aging_s=30.0).admit(view, new)


def reason(verdict: Verdict) -> Reason:
    assert isinstance(verdict, Rejected)
    return verdict.reason


def admitted(verdicts: list[Verdict]) -> int:
    return sum(isinstance(verdict, Admitted) for verdict in verdicts)


def test_no_candidates_get_no_verdicts() -> None:
    assert answer(replica()) == []


def test_an_idle_replica_admits_and_predicts_within_the_targets() -> None:
    verdict = answer(replica(), asks("a"))[0]
    assert isinstance(verdict, Admitted)
    assert MODEL.prefill_seconds(500) <= verdict.ttft_predicted_s <= 1.0
    assert MODEL.prefill_seconds(1) <= verdict.tpot_predicted_s <= 0.1


def test_an_idle_replica_admits_a_prompt_that_only_one_long_batch_serves_in_time() -> None:
    just_s = MODEL.prefill_seconds(3000) + 0.001
    verdict = answer(replica(), asks("a", 3000, ttft_s=just_s))[0]
    assert isinstance(verdict, Admitted)
    assert verdict.ttft_predicted_s == pytest.approx(just_s - 0.001)


def test_a_request_that_no_idle_replica_could_serve_is_rejected_with_never() -> None:
    impossible = [
        asks("late", 3000, ttft_s=MODEL.prefill_seconds(3000) - 0.001),
        asks("fast", tpot_s=0.020),
        asks("large", 43000, output=500, ttft_s=100.0),
        asks("offline", 43297, best_effort=True),
    ]
    assert [reason(v) for v in answer(replica(), *impossible)] == [Reason.NEVER] * 4
    assert [v.earliest_s for v in answer(replica(), *impossible) if isinstance(v, Rejected)] == [None] * 4


def test_a_budget_spent_at_other_replicas_is_not_never() -> None:
    """It came late, another like it need not."""
    view = replica(now_s=0.95)
    assert reason(answer(view, asks("a", 1500, at_s=0.0))[0]) is Reason.PREFILL_BUDGET


def test_best_effort_is_accepted_without_a_plan() -> None:
    assert answer(replica(), asks("a", best_effort=True)) == [BestEffort()]


def test_verdicts_are_in_the_order_of_the_candidates() -> None:
    verdicts = answer(replica(), asks("a", best_effort=True), asks("b", ttft_s=2.0), asks("c", tpot_s=0.01))
    assert [type(v) for v in verdicts] == [BestEffort, Admitted, Rejected]


def test_a_prefill_past_its_deadline_is_refused_with_a_retry_time() -> None:
    crowd = [asks(f"{i:02d}", 1000, ttft_s=0.5) for i in range(10)]
    verdicts = answer(replica(), *crowd)
    refused = [v for v in verdicts if isinstance(v, Rejected)]
    assert 0 < admitted(verdicts) < 10
    assert {v.reason for v in refused} == {Reason.PREFILL_BUDGET}
    assert all(v.earliest_s is not None and 0 < v.earliest_s < 1 for v in refused)


def test_a_candidate_waits_for_the_batch_in_progress() -> None:
    urgent = asks("a", 500, ttft_s=0.15)
    assert admitted(answer(replica(), urgent)) == 1
    assert admitted(answer(replica(busy_s=0.12), urgent)) == 0


def test_candidates_are_rejected_if_decodes_leave_no_time_for_their_tpot() -> None:
    running = tuple(decodes(f"d{i}", 20, 50, tpot_s=0.05) for i in range(300))
    view = replica(running, limits=Limits(running=512))
    verdict = answer(view, asks("a", 20, 50, tpot_s=0.045))[0]
    assert reason(verdict) is Reason.DECODE_BUDGET
    assert isinstance(verdict, Rejected)
    assert verdict.earliest_s is not None


def test_slots_are_counted() -> None:
    view = replica(tuple(decodes(f"d{i}") for i in range(4)), limits=Limits(running=5))
    verdicts = answer(view, asks("a"), asks("b"))
    assert admitted(verdicts) == 1
    assert reason(next(v for v in verdicts if isinstance(v, Rejected))) is Reason.DECODE_BUDGET


def test_memory_is_judged_by_the_future_peak_of_the_set() -> None:
    """A request that ends early frees blocks for one that grows late; two that grow together do not fit."""
    near_its_end = decodes("short", 960, 3)
    assert admitted(answer(replica((near_its_end,), kv_tokens=1600), asks("a", 160, 1000))) == 1
    verdict = answer(replica((decodes("long", 960, 900),), kv_tokens=1920), asks("a", 160, 1000))[0]
    assert reason(verdict) is Reason.KV_MEMORY
    assert isinstance(verdict, Rejected)
    assert verdict.earliest_s is not None
    assert verdict.earliest_s > 0


def test_more_valuable_candidates_are_preferred() -> None:
    crowd = [asks(f"{i:02d}", 1000, ttft_s=0.5, value=1.0 + (i == 7) * 9) for i in range(9)]
    assert isinstance(answer(replica(), *crowd)[7], Admitted)


def test_running_prefills_are_never_dropped() -> None:
    """A candidate with an earlier deadline would make an admitted request late, and is rejected."""
    accepted = asks("old", 5000, ttft_s=0.45)
    assert (
        reason(answer(replica(waiting=(accepted,)), asks("new", 1500, ttft_s=0.4))[0])
        is Reason.PREFILL_BUDGET
    )


def test_a_request_that_is_late_already_is_not_made_later() -> None:
    late = asks("late", 1000, ttft_s=0.01)
    assert admitted(answer(replica(waiting=(late,)), asks("new", 500, ttft_s=2.0))) == 1


def test_a_decode_that_is_nearly_due_delays_everything_else() -> None:
    nearly_due = replica((decodes("d", tpot_s=0.06),), now_s=0.02)
    fresh = replica((decodes("d", tpot_s=0.06, at_s=0.02),), now_s=0.02)
    urgent = asks("a", 500, ttft_s=0.1)
    assert admitted(answer(fresh, urgent)) == 1
    assert admitted(answer(nearly_due, urgent)) == 0


def test_several_candidates_wait_for_tokens_that_are_nearly_due() -> None:
    """Each would have been in time alone; the program takes as many as the next period has room for."""
    nearly_due = replica((decodes("d", tpot_s=0.06),), now_s=0.02)
    crowd = [asks(f"{i}", 1000, ttft_s=0.3) for i in range(6)]
    assert 0 < admitted(answer(nearly_due, *crowd)) < 6
    late = replica((decodes("d", tpot_s=0.06),), now_s=0.2)
    assert admitted(answer(late, *crowd)) < 6


def test_candidates_that_are_all_late_are_all_rejected() -> None:
    crowd = [asks(f"{i}", 2500, ttft_s=0.5) for i in range(3)]
    verdicts = answer(replica(now_s=0.45), *crowd)
    assert [reason(verdict) for verdict in verdicts] == [Reason.PREFILL_BUDGET] * 3


def test_requests_without_targets_are_admitted_and_cost_capacity() -> None:
    free = asks("free", ttft_s=None, tpot_s=None)
    first = answer(replica(), free)[0]
    assert isinstance(first, Admitted)
    assert first.ttft_predicted_s < inf
    assert admitted(answer(replica(waiting=(free,), kv_tokens=800), asks("a"))) == 0


def test_more_than_one_group_is_decided_by_deadline() -> None:
    crowd = [asks(f"{i:03d}", 200, 20, ttft_s=20.0) for i in range(MOST_CANDIDATES + 8)]
    assert admitted(answer(replica(), *crowd)) == len(crowd)
    verdicts = answer(replica(kv_tokens=6400), *crowd)
    assert 8 <= admitted(verdicts) < MOST_CANDIDATES


def test_a_tpot_that_the_engine_can_no_longer_meet_constrains_no_request() -> None:
    hopeless = decodes("d", tpot_s=0.02)
    assert admitted(answer(replica((hopeless,)), asks("a"))) == 1


def test_decodes_beyond_their_tpot_leave_no_time_for_candidates() -> None:
    running = tuple(decodes(f"d{i}", 20, 50, tpot_s=0.04) for i in range(300))
    view = replica(running, (asks("w", ttft_s=None),), limits=Limits(running=512))
    verdict = answer(view, asks("a", 20, ttft_s=None, tpot_s=None))[0]
    assert reason(verdict) is Reason.DECODE_BUDGET


def test_fuller_memory_admits_only_cheaper_requests() -> None:
    """Blocks would suffice for each of them; only small or valuable requests are admitted."""
    running = tuple(decodes(f"d{i}", 500, 100) for i in range(40))
    costly = asks("a", 1500, 2000, ttft_s=5.0)
    full, free = (replica(running, kv_tokens=tokens) for tokens in (28_800, 96_000))
    verdict = answer(full, costly)[0]
    assert reason(verdict) is Reason.KV_MEMORY
    assert isinstance(verdict, Rejected)
    assert verdict.earliest_s is not None
    assert admitted(answer(free, costly)) == 1
    assert admitted(answer(full, asks("a", 500, 100, ttft_s=5.0))) == 1
    assert admitted(answer(full, asks("a", 1500, 2000, ttft_s=5.0, value=50.0))) == 1


def test_a_later_first_token_admits_only_shorter_prompts() -> None:
    """It would be just in time, but several short ones would be too, until then."""
    waiting = tuple(asks(f"w{i}", 400, 20, ttft_s=2.0) for i in range(16))
    long, short = asks("long", 2500, 20, ttft_s=1.0), asks("short", 400, 20, ttft_s=1.0)
    view = replica(waiting=tuple(job._replace(due_s=0.9) for job in waiting))
    assert reason(answer(view, long)[0]) is Reason.PREFILL_BUDGET
    assert admitted(answer(view, short)) == 1
    assert admitted(answer(replica(waiting=waiting), long)) == 1


def test_new_requests_fit_around_best_effort_that_has_waited_too_long() -> None:
    offline = asks("offline", 4000, best_effort=True, at_s=0.0, ttft_s=None, tpot_s=None)
    new = asks("new", 500, ttft_s=0.33, at_s=100.0)
    waiting = replica(waiting=(offline,), now_s=100.0)
    patient = replica(
        waiting=(offline._replace(request=replace(offline.request, arrival_s=90.0)),), now_s=100.0
    )
    assert admitted(answer(waiting, new)) == 0
    assert admitted(answer(patient, new)) == 1


@pytest.mark.parametrize("generated", [0, 50])
def test_a_late_protected_answer_that_was_preempted_leaves_the_rest_of_the_capacity(generated: int) -> None:
    """It is due before all others, and continues its old answer without a deadline."""
    offline = asks("offline", 2000, 400, best_effort=True, ttft_s=None, tpot_s=None)
    view = replica(waiting=(offline._replace(generated_tokens=generated),), now_s=300.0)
    assert admitted(answer(view, asks("new", 4000, ttft_s=4.0, at_s=300.0))) == 1
    old, new = view.waiting[0], asks("there", 4000, ttft_s=4.0, at_s=300.0)
    policy = SlosServe(aging_s=30.0)
    step, _ = policy.step(replace(view, waiting=(old, new)), None)
    assert step.tokens["offline"] > step.tokens.get("there", 0)


def test_old_best_effort_is_served_first_only_if_all_slos_are_met() -> None:
    offline = asks("offline", 3000, 10, best_effort=True, ttft_s=None, tpot_s=None)
    tight = asks("tight", 1000, ttft_s=0.3, at_s=100.0)
    loose = asks("loose", 1000, ttft_s=3.0, at_s=100.0)
    for waiting, kv_tokens, first in ((loose, 43296, True), (tight, 43296, False), (loose, 3200, False)):
        crowded = replica(waiting=(offline, waiting), now_s=100.0, kv_tokens=kv_tokens)
        together = Workload.of(crowded, 30.0).protecting
        assert together is not None
        assert isinstance(feasible(together.admitted), Feasible) is first


def test_best_effort_needs_room_for_its_prompt_and_a_token() -> None:
    view = replica(kv_tokens=1600)
    offline = [asks(f"{tokens}", tokens, best_effort=True) for tokens in (1599, 1600)]
    assert answer(view, *offline) == [BestEffort(), Rejected(Reason.NEVER)]


def test_a_costly_candidate_does_not_exclude_a_cheaper_one() -> None:
    """Blocks suffice for both, so the program takes both; by the price of memory only one may come."""
    running = tuple(decodes(f"d{i}", 500, 100) for i in range(40))
    costly, cheap = asks("costly", 1500, 2000, ttft_s=5.0), asks("cheap", 500, 100, ttft_s=5.0)
    first, second = answer(replica(running, kv_tokens=28_800), costly, cheap)
    assert reason(first) is Reason.KV_MEMORY
    assert isinstance(second, Admitted)


def test_several_candidates_wait_for_the_batch_in_progress() -> None:
    crowd = [asks(f"{i:02d}", 1000, ttft_s=0.5) for i in range(10)]
    free, busy = (admitted(answer(replica(busy_s=busy_s), *crowd)) for busy_s in (0.0, 0.2))
    assert 0 < busy < free < 10
