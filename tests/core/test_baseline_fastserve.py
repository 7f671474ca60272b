"""Feedback queues: where a job joins, when it moves down, which is served first, which is preempted."""

import pytest
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.policies.fastserve import FastServe
from penstock_core.policies.feedback_queues import QueuePosition, QueuePositions, queues_of
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.time_model import BatchWork
from replica_views import kv_cache

MODEL = time_model("slos-serve-opt-6.7b-a100")
SHORTEST_S = MODEL.seconds(BatchWork(1))
NOW_S = 100.0


def prompt(name: str, tokens: int = 100, at_s: float = NOW_S) -> Job:
    return new_job(Request(name, "tier", at_s, tokens, 500), 50, best_effort=False)


def decode(name: str, context: int = 100) -> Job:
    return advance(prompt(name, context), context, 1, NOW_S)


def replica(
    running: list[Job], waiting: list[Job], free_blocks: int = 1000, tokens: int = 8192
) -> ReplicaView:
    kv = kv_cache(running, free_blocks)
    return ReplicaView(NOW_S, NOW_S, tuple(running), tuple(waiting), kv, Limits(tokens, 16), MODEL)


def position(queue: int, served_ago_s: float = 0.0, used_s: float = 0.0) -> QueuePosition:
    return QueuePosition(queue, used_s, NOW_S - served_ago_s)


def step(view: ReplicaView, positions: QueuePositions) -> Step:
    return FastServe().step(view, positions)[0]


def test_quanta_double_from_the_shortest_iteration() -> None:
    quanta_s = queues_of(MODEL, 5, 30.0, NOW_S).quanta_s
    assert quanta_s == pytest.approx([SHORTEST_S * factor for factor in (1, 2, 4, 8, 16)])


@pytest.mark.parametrize(
    ("tokens", "queue"), [(1, 0), (300, 1), (1000, 2), (2000, 3), (4000, 4), (50_000, 4)]
)
def test_a_new_request_skips_to_the_queue_that_covers_its_prompt(tokens: int, queue: int) -> None:
    queues = queues_of(MODEL, 5, 30.0, NOW_S)
    assert queues.position_of(prompt("a", tokens), {}).queue == queue
    covers_s = queues.quanta_s[queue]
    assert queue == 4 or MODEL.prefill_seconds(tokens) <= covers_s
    assert queue == 0 or MODEL.prefill_seconds(tokens) > queues.quanta_s[queue - 1]


def test_a_job_that_used_its_quantum_is_demoted_at_most_to_the_last_queue() -> None:
    queues = queues_of(MODEL, 3, 30.0, NOW_S)
    half_s = SHORTEST_S / 2
    once = queues.served(position(0), half_s)
    assert once == QueuePosition(0, half_s, NOW_S + half_s)
    assert queues.served(once, half_s) == QueuePosition(1, 0.0, NOW_S + half_s)
    last = queues.served(position(2), 100.0)
    assert (last.queue, last.used_s) == (2, 100.0)


def test_a_starved_request_starts_again_at_the_top() -> None:
    queues = queues_of(MODEL, 5, 30.0, NOW_S)
    assert queues.position_of(decode("a"), {"a": position(4, served_ago_s=29.0)}).queue == 4
    assert queues.position_of(decode("a"), {"a": position(4, served_ago_s=30.0, used_s=1.0)}) == position(0)
    assert queues.position_of(prompt("b", 4000, at_s=NOW_S - 30.0), {}).queue == 0


def test_upper_queues_go_first_and_running_jobs_before_new_requests_of_theirs() -> None:
    view = replica([decode("low"), decode("top")], [prompt("long", 4000), prompt("short")])
    tokens = step(view, {"low": position(2), "top": position(1)}).tokens
    assert list(tokens) == ["top", "short", "low", "long"]


def test_a_full_batch_leaves_lower_queues_waiting() -> None:
    view = replica([decode("low"), decode("top")], [prompt("short")], tokens=50)
    assert step(view, {"low": position(4), "top": position(0)}).tokens == {"top": 1, "short": 49}


def test_new_requests_of_one_queue_start_one_after_the_other_to_the_last_token() -> None:
    view = replica([decode("top")], [prompt("a", 50), prompt("b", 60), prompt("c", 9)], tokens=112)
    assert step(view, {"top": position(0)}).tokens == {"top": 1, "a": 50, "b": 60, "c": 1}


def test_a_new_request_takes_one_slot_from_a_lower_queue() -> None:
    running = [decode(f"low{i}") for i in range(16)]
    positions = {f"low{i}": position(4) for i in range(16)}
    taken = step(replica(running, [prompt("short", 100)]), positions)
    assert taken.preempt == ("low15",)
    assert taken.tokens["short"] == 100


@pytest.mark.parametrize(("prompt_tokens", "started"), [(128, True), (129, False)])
def test_a_new_request_starts_if_all_idle_memory_just_suffices(prompt_tokens: int, started: bool) -> None:
    """One block is free and one idle request has seven; the one served keeps its own."""
    running = [decode("low"), decode("top")]
    view = replica(running, [prompt("short", prompt_tokens)], free_blocks=1)
    served = step(view, {"low": position(4), "top": position(0)})
    assert ("short" in served.tokens) is started
    assert served.preempt == (("low",) if started else ())


def test_a_request_that_was_not_served_keeps_its_place() -> None:
    view = replica([decode("top"), decode("low")], [], tokens=1)
    before = {"top": position(0), "low": position(3, served_ago_s=5.0, used_s=0.25)}
    after = FastServe().step(view, before)[1]
    assert after["low"] == before["low"]


def test_a_new_request_starts_with_its_whole_quantum() -> None:
    queues = queues_of(MODEL, 5, 30.0, NOW_S)
    assert queues.position_of(prompt("a", 1), {}) == position(0)
    assert queues.served(position(3), 100.0).queue == 4


def test_a_new_request_takes_memory_from_lower_queues_if_that_suffices() -> None:
    positions = {"low": position(4), "lower": position(4), "top": position(0)}
    view = replica([decode("low"), decode("lower"), decode("top")], [prompt("short", 100)], free_blocks=1)
    taken = step(view, positions)
    assert (dict(taken.tokens), taken.preempt) == ({"top": 1, "short": 100, "low": 1}, ("lower",))
    large = replica([decode("low"), decode("lower"), decode("top")], [prompt("short", 300)], free_blocks=1)
    waits = step(large, positions)
    assert (set(waits.tokens), waits.preempt) == ({"top", "low", "lower"}, ())


def test_behind_a_request_that_does_not_fit_only_running_ones_continue() -> None:
    view = replica([decode("low")], [prompt("large", 300), prompt("small", 16)], free_blocks=5)
    assert step(view, {"low": position(4)}).tokens == {"low": 1}


def test_out_of_blocks_the_lowest_queue_is_preempted() -> None:
    view = replica([decode("low", 96), decode("top", 96)], [], free_blocks=0)
    served = step(view, {"low": position(3), "top": position(1)})
    assert (served.tokens, served.preempt) == ({"top": 1}, ("low",))


def test_the_state_has_only_present_requests() -> None:
    policy = FastServe()
    view = replica([decode("a"), decode("idle", 8000)], [prompt("b"), prompt("far", 60_000)], tokens=102)
    before = {"a": position(0), "gone": position(3), "idle": position(4, 3.0)}
    _, after = policy.step(view, before)
    assert set(after) == {"a", "b", "idle"}
    assert after["a"].queue == 1
    assert after["idle"].served_s > NOW_S
