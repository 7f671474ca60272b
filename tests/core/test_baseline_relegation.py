"""Requests that cannot be in time wait behind; batches as long as slack; requests held while feasible."""

from math import inf

import pytest
from penstock_core.batch.relegation import Lost, decode_batch, divide
from penstock_core.domain.policy import Policy, Step
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Anchor, Judge, Targets
from penstock_core.policies.fluidserve import FluidServe
from penstock_core.policies.qoserve import QoServe
from penstock_core.policies.start_check import MOST_CANDIDATES
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation, tokens_expected
from replica_views import kv_cache

MODEL = time_model("slos-serve-opt-6.7b-a100")
NOW_S = 10.0
ONE_S = MODEL.prefill_seconds(1)


def prompt(name: str, tokens: int = 500, *, due_in_s: float = 5.0, done: int = 0, answer: int = 50) -> Job:
    request = Request(name, "tier", NOW_S, tokens, 4096, Targets(5.0, 0.1))
    job = new_job(request, answer, best_effort=False)._replace(due_s=NOW_S + due_in_s)
    return advance(job, done, 0, NOW_S) if done else job


def decode(
    name: str,
    context: int = 500,
    *,
    due_in_s: float = 0.1,
    tpot_s: float | None = 0.1,
    judge: Judge = Judge.MEAN,
    left: int = 50,
) -> Job:
    request = Request(name, "tier", NOW_S, context, 4096, Targets(5.0, tpot_s, None, judge))
    job = advance(new_job(request, 1 + left, best_effort=False), context, 1, NOW_S)
    return job._replace(due_s=NOW_S + due_in_s)


def offline(job: Job) -> Job:
    return job._replace(best_effort=True)


def replica(
    running: list[Job],
    waiting: list[Job],
    *,
    free_blocks: int = 2000,
    limits: Limits | None = None,
    drafts: int = 0,
) -> ReplicaView:
    kv = kv_cache(running, free_blocks)
    reported = Speculation(drafts, 0.7) if drafts else None
    return ReplicaView(NOW_S, NOW_S, tuple(running), tuple(waiting), kv, limits or Limits(), MODEL, reported)


def step_of(policy: Policy[Lost], view: ReplicaView, lost: Lost = frozenset()) -> Step:
    return policy.step(view, lost)[0]


def lost_names(view: ReplicaView) -> set[str]:
    _, behind = divide(view, frozenset(), decode_batch(view))
    return {job.request.id for jobs in behind for job in jobs}


def test_a_prompt_is_lost_if_even_the_next_batch_finishes_it_late() -> None:
    soonest_s = MODEL.prefill_seconds(1 + 500)
    waiting = [prompt("in time", due_in_s=soonest_s + 1e-6), prompt("lost", due_in_s=soonest_s - 1e-6)]
    assert lost_names(replica([decode("d")], waiting)) == {"lost"}


PACES = {
    "on its pace": (decode("d", due_in_s=ONE_S), set()),
    "behind, but its mean can be kept": (decode("d", due_in_s=-1.0, left=50), set()),
    "behind, and its answer ends too soon to catch up": (decode("d", due_in_s=-1.0, left=10), {"d"}),
    "behind by more than is left of its window": (
        decode("d", due_in_s=-1.0, judge=Judge.WINDOW)._replace(anchor=Anchor(NOW_S - 1.6, -4)),
        {"d"},
    ),
    "behind within its window": (decode("d", due_in_s=-0.1, judge=Judge.WINDOW), set()),
    "behind where every gap counts": (decode("d", due_in_s=ONE_S - 1e-6, judge=Judge.MAX), {"d"}),
    "no request waits for it": (decode("d", due_in_s=inf, tpot_s=None), set()),
    "no SLO at all": (offline(decode("d")), {"d"}),
}


@pytest.mark.parametrize("case", PACES)
def test_a_tpot_is_lost_if_decoding_alone_would_not_catch_up(case: str) -> None:
    job, lost = PACES[case]
    assert lost_names(replica([job], [])) == lost


def test_speculation_catches_up_sooner() -> None:
    late = decode("d", due_in_s=-1.0, left=13)
    assert lost_names(replica([late], [])) == {"d"}
    assert lost_names(replica([late], [], drafts=3)) == set()


@pytest.mark.parametrize("policy", [QoServe(), FluidServe()], ids=["qoserve", "fluidserve"])
def test_a_lost_request_stays_lost(policy: QoServe | FluidServe) -> None:
    late = prompt("late", due_in_s=0.01)
    _, lost = policy.step(replica([], [late]), policy.start())
    assert lost == {"late"}
    step, again = policy.step(replica([decode("late")], [prompt("p", 5000)]), lost)
    assert again == {"late"}
    assert step.tokens == {"p": policy.most_prompt_tokens, "late": 1}
    assert policy.step(replica([], []), again)[1] == frozenset()


def test_qoserve_fills_the_slack_of_its_decodes() -> None:
    for due_in_s in (0.04, 0.06, 0.09):
        step = step_of(QoServe(), replica([decode("d", due_in_s=due_in_s)], [prompt("p", 5000)]))
        assert step.duration_s <= due_in_s < step.duration_s + 1e-4


def test_with_drafts_slack_goes_to_the_last_token_expected() -> None:
    view = replica([decode("d", due_in_s=0.04, tpot_s=0.02)], [prompt("p", 5000)], drafts=3)
    slack_s = 0.04 + (tokens_expected(0.7, 3) - 1) * 0.02
    step = step_of(QoServe(), view)
    assert step.drafts == {"d": 3}
    assert step.duration_s <= slack_s < step.duration_s + 1e-4


def test_qoserve_computes_no_prompt_while_a_decode_catches_up() -> None:
    assert step_of(QoServe(), replica([decode("d", due_in_s=-0.5)], [prompt("p")])).tokens == {"d": 1}


def test_qoserve_without_decodes_takes_the_largest_useful_chunk() -> None:
    assert step_of(QoServe(), replica([], [prompt("p", 5000)])).tokens == {"p": 1024}
    assert step_of(QoServe(most_prompt_tokens=700), replica([], [prompt("p", 5000)])).tokens == {"p": 700}


def test_qoserve_serves_by_deadline_and_work() -> None:
    waiting = [prompt("long", 2000, due_in_s=1.0), prompt("short", 100, due_in_s=1.1)]
    assert list(step_of(QoServe(), replica([], waiting)).tokens) == ["short", "long"]
    assert list(step_of(QoServe(work_weight=0.0), replica([], waiting)).tokens) == ["long"]


def test_relegated_requests_are_served_last_in_order_if_no_other_waits() -> None:
    waiting = [prompt("late", 100, due_in_s=0.0), offline(prompt("offline", 100)), prompt("p", 100)]
    assert list(step_of(QoServe(), replica([], waiting)).tokens) == ["p", "late", "offline"]
    assert list(step_of(QoServe(most_prompt_tokens=99), replica([], waiting)).tokens) == ["p"]


def test_relegated_decodes_run_while_the_batch_ends_in_time() -> None:
    behind = [offline(decode("o"))]
    assert "o" in step_of(QoServe(), replica([decode("d"), *behind], [prompt("p", 100)])).tokens
    full = step_of(QoServe(), replica([decode("d", due_in_s=0.03), *behind], [prompt("p", 5000)]))
    assert set(full.tokens) == {"d", "p"}
    no_tokens = replica([decode("d"), *behind], [], limits=Limits(batch_tokens=1))
    assert step_of(QoServe(), no_tokens).tokens == {"d": 1}


def test_relegated_requests_are_preempted_for_new_ones_prompts_first() -> None:
    running = [offline(decode("od", 320)), offline(prompt("op", 500, done=320)), decode("d")]
    step = step_of(QoServe(), replica(running, [prompt("p", 300)], free_blocks=2))
    assert step.preempt == ("op",)
    assert set(step.tokens) == {"d", "p", "od"}
    both = step_of(QoServe(), replica(running, [prompt("p", 600)], free_blocks=2))
    assert both.preempt == ("op", "od")
    assert set(both.tokens) == {"d", "p"}


def test_a_new_request_takes_one_slot_and_no_more() -> None:
    running = [offline(prompt(name, 500, done=320)) for name in ("first", "second")]
    step = step_of(QoServe(), replica(running, [prompt("p", 300)], limits=Limits(running=2)))
    assert step.preempt == ("second",)
    assert set(step.tokens) == {"p", "first"}


def test_without_blocks_for_the_whole_prompt_no_request_starts() -> None:
    waiting = [prompt("large", 900), prompt("small", 16, due_in_s=9.0)]
    assert step_of(QoServe(), replica([decode("d")], waiting, free_blocks=9)).tokens == {"d": 1}


def test_a_prompt_in_progress_takes_blocks_from_requests_served_later() -> None:
    running = [prompt("later", 500, done=160, due_in_s=4.0), prompt("sooner", 320, done=160, due_in_s=2.0)]
    step = step_of(QoServe(), replica(running, [], free_blocks=0))
    assert (step.tokens, step.preempt) == ({"sooner": 160}, ("later",))


def test_fluidserve_holds_back_prompts_if_their_answers_would_not_fit_kv_memory() -> None:
    """120 blocks: two prompts of 32 fit with answers of 50, a third would at once but not for long."""
    waiting = [prompt(name, 500, answer=200) for name in "abc"]
    step = step_of(FluidServe(), replica([], waiting, free_blocks=120))
    assert set(step.tokens) == {"a", "b"}
    shorter = [prompt("c", 500, answer=2) if job.request.id == "c" else job for job in waiting]
    assert set(step_of(FluidServe(), replica([], shorter, free_blocks=120)).tokens) == {"a", "b", "c"}


def test_fluidserve_counts_memory_when_others_have_ended() -> None:
    """The decode ends after two more tokens; only then does the new answer grow."""
    ends, stays = decode("d", 800, left=2), decode("d", 800, left=400)
    candidate = prompt("p", 600, answer=300)
    assert "p" in step_of(FluidServe(), replica([ends], [candidate], free_blocks=45)).tokens
    assert "p" not in step_of(FluidServe(), replica([stays], [candidate], free_blocks=45)).tokens


def test_fluidserve_holds_back_prompts_that_would_break_a_tpot_target() -> None:
    running = [decode(f"d{i}", 16, tpot_s=0.025, due_in_s=0.5) for i in range(1)]
    assert set(step_of(FluidServe(), replica(running, [prompt("p")])).tokens) == {"d0", "p"}
    running = [decode(f"d{i}", 16, tpot_s=0.025, due_in_s=0.5) for i in range(2)]
    assert set(step_of(FluidServe(), replica(running, [prompt("p")])).tokens) == {"d0", "d1"}


def test_a_held_request_does_not_delay_others_but_shed_ones_wait() -> None:
    waiting = [prompt("large", 1500, answer=2000), prompt("small", 100), prompt("late", 10, due_in_s=0.0)]
    step = step_of(FluidServe(), replica([decode("d")], waiting, free_blocks=140))
    assert set(step.tokens) == {"d", "small"}


def test_an_idle_replica_starts_any_request() -> None:
    assert step_of(FluidServe(), replica([], [prompt("p", 500, answer=5000)], free_blocks=100)).tokens == {
        "p": 500
    }


def test_new_requests_start_by_deadline_up_to_the_search_limit() -> None:
    waiting = [prompt(f"p{i:02d}", 10, due_in_s=9.0 - i / 10) for i in range(MOST_CANDIDATES + 4)]
    names = list(step_of(FluidServe(), replica([], waiting)).tokens)
    assert names == [job.request.id for job in reversed(waiting)][:MOST_CANDIDATES]
