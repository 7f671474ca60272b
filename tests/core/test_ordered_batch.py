"""Batches by an order: running jobs, draft tokens, new jobs and preemption, at the bounds of an engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.batch.forced_progress import force_oldest_progress
from penstock_core.batch.open_batch import OpenBatch
from penstock_core.batch.ordered_batch import (
    add_running,
    prompts_or_decodes,
    run_on,
    start,
    starting_tokens,
)
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.policies.slos_serve.batch_formation import Victims
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import Term, TimeModel
from replica_views import kv_cache

MODEL = TimeModel("round", (Term(1e-4, 0.010),))


def prompt(name: str, tokens: int = 100, done: int = 0, due_s: float = 5.0) -> Job:
    job = new_job(Request(name, "tier", 0.0, tokens, 500), 200, best_effort=False)
    return job._replace(computed_tokens=done, due_s=due_s)


def decode(name: str, context: int = 100, due_s: float = 5.0) -> Job:
    return advance(prompt(name, context), context, 1, 0.0)._replace(due_s=due_s)


def replica(
    running: list[Job],
    waiting: list[Job],
    free_blocks: int = 1000,
    drafts: int = 0,
    *,
    tokens: int = 8192,
    slots: int = 256,
) -> ReplicaView:
    kv = kv_cache(running, free_blocks)
    reported = Speculation(drafts, 0.7) if drafts else None
    return ReplicaView(0.0, 0.0, tuple(running), tuple(waiting), kv, Limits(tokens, slots), MODEL, reported)


def blocks(tokens: int) -> int:
    return -(-tokens // 16)


def test_a_running_job_without_blocks_or_victims_is_preempted() -> None:
    job = decode("a", 112)
    batch = OpenBatch(replica([job], [], free_blocks=0))
    add_running(batch, job, iter(()))
    assert (batch.tokens, list(batch.preempted)) == ({}, ["a"])


@given(
    st.lists(st.integers(1, 80), min_size=1, max_size=6),
    st.integers(0, 40),
    st.integers(0, 20),
    st.integers(1, 150),
)
def test_decodes_draft_as_much_as_tokens_and_blocks_allow_and_together_as_one_by_one(
    contexts: list[int], drafts: int, free_blocks: int, batch_tokens: int
) -> None:
    decodes = [decode(f"d{i}", context) for i, context in enumerate(contexts)]
    view = replica(decodes, [], free_blocks, drafts, tokens=batch_tokens)
    together, apart = OpenBatch(view), OpenBatch(view)
    run_on(together, decodes)
    victims = reversed(decodes)
    for job in decodes:
        if apart.left_tokens and job.request.id not in apart.preempted:
            before = apart.free_blocks
            add_running(apart, job, victims)
            if apart.preempted or job.request.id not in apart.tokens:
                continue
            free = before - (blocks(job.computed_tokens + 1) - blocks(job.computed_tokens))
            left = batch_tokens - apart.work.tokens + apart.drafts.get(job.request.id, 0)
            fitting = [
                n
                for n in range(drafts + 1)
                if n <= left and blocks(job.computed_tokens + 1 + n) - blocks(job.computed_tokens + 1) <= free
            ]
            assert apart.drafts.get(job.request.id, 0) == max(fitting)
    assert (together.tokens, together.drafts) == (apart.tokens, apart.drafts)
    assert (together.work, together.free_blocks) == (apart.work, apart.free_blocks)
    assert list(together.preempted) == list(apart.preempted)
    assert together.free_blocks >= 0 and together.left_tokens >= 0


def test_a_running_request_needs_no_slot() -> None:
    running = [prompt("p", 100, done=20), decode("d", 15)]
    batch = OpenBatch(replica(running, [], slots=2))
    run_on(batch, running)
    assert (batch.tokens, list(batch.preempted)) == ({"p": 80, "d": 1}, [])


def test_requests_are_preempted_from_the_last_served_to_the_one_that_needs_blocks() -> None:
    running = [decode("a", 16), decode("b", 16), decode("c", 32)]
    batch = OpenBatch(replica(running, [], free_blocks=0))
    run_on(batch, running)
    assert (batch.tokens, list(batch.preempted)) == ({"a": 1, "b": 1}, ["c"])
    alone = OpenBatch(replica([decode("a", 16)], [], free_blocks=0))
    run_on(alone, [decode("a", 16)])
    assert (alone.tokens, list(alone.preempted)) == ({}, ["a"])


@pytest.mark.parametrize(("spare", "started"), [(3, True), (4, False)])
def test_a_new_request_leaves_the_spare_blocks_free(spare: int, started: bool) -> None:
    batch = OpenBatch(replica([], [prompt("p", 100)], free_blocks=10))
    start(batch, batch.view.waiting, spare_blocks=spare)
    assert ("p" in batch.tokens) is started


def test_a_new_request_takes_the_last_block_and_the_last_slot() -> None:
    last = replica([decode("d", 15)], [prompt("p", 112), prompt("q", 1)], free_blocks=7, slots=2)
    for batch in (OpenBatch(last), prompts_or_decodes(last, last.waiting)):
        start(batch, () if batch.tokens else last.waiting)
        assert batch.tokens == {"p": 112}
        assert (batch.free_blocks, batch.free_slots) == (0, 0)


def test_no_request_starts_without_a_slot_or_a_token() -> None:
    full = OpenBatch(replica([decode("d")], [prompt("p")], slots=1))
    start(full, full.view.waiting)
    assert full.tokens == {}
    ended = OpenBatch(replica([decode("d")], [prompt("p")], tokens=1))
    run_on(ended, ended.view.running)
    start(ended, ended.view.waiting)
    assert ended.tokens == {"d": 1}


def test_unchunked_prompts_start_whole_unless_no_batch_is_long_enough() -> None:
    batch = OpenBatch(replica([decode("d")], [], tokens=101))
    assert starting_tokens(batch, prompt("p", 101), whole=True) == 101
    assert starting_tokens(batch, prompt("p", 300), whole=True) == 101
    run_on(batch, batch.view.running)
    assert starting_tokens(batch, prompt("p", 100), whole=True) == 100
    assert starting_tokens(batch, prompt("p", 101), whole=True) == 0
    assert starting_tokens(batch, prompt("p", 101), whole=False) == 100


def test_prompts_in_progress_are_computed_first_and_no_request_starts_after_a_preemption() -> None:
    running = [prompt("early", 100, done=16), decode("d"), prompt("late", 100, done=16)]
    view = replica(running, [prompt("p", 50)])
    assert list(prompts_or_decodes(view, view.waiting).tokens.items()) == [
        ("early", 84),
        ("late", 84),
        ("p", 50),
    ]
    short = replica(running, [prompt("p", 16)], free_blocks=5)
    batch = prompts_or_decodes(short, short.waiting)
    assert (batch.tokens, list(batch.preempted)) == ({"early": 84}, ["late"])


def test_if_no_prompt_can_progress_decodes_run_alone_and_preempt_prompts() -> None:
    running = [prompt("p", 600, done=16), decode("a", 16), decode("b", 16)]
    batch = prompts_or_decodes(replica(running, [], free_blocks=1), [])
    assert (batch.tokens, list(batch.preempted)) == ({"a": 1, "b": 1}, ["p"])


def preempted_for(need: Job, blocks: int, slots: int, free: int = 0) -> tuple[bool, list[str]]:
    surplus = [decode("old", 16), decode("new", 16), prompt("waiting", 16)]
    accepted = [decode("soon", 16, due_s=1.0), decode("later", 16, due_s=3.0), prompt("held", 16, due_s=9.0)]
    running = [job for job in (*surplus, *accepted) if job.computed_tokens]
    batch = OpenBatch(replica(running, [], free_blocks=free, slots=4))
    victims = Victims(surplus, [*accepted, *([need] if need.computed_tokens else [])])
    there = batch.make_room(blocks, slots, victims.of(need))
    return there, list(batch.preempted)


def test_best_effort_is_preempted_first_in_reverse_order_of_start() -> None:
    candidate = prompt("need", due_s=2.0)
    assert preempted_for(candidate, 0, 0) == (True, [])
    assert preempted_for(candidate, 1, 0, free=1) == (True, [])
    assert preempted_for(candidate, 1, 1) == (True, ["new"])
    assert preempted_for(candidate, 2, 1) == (True, ["new", "old"])


def test_a_running_request_preempts_later_ones_and_a_new_one_preempts_none() -> None:
    assert preempted_for(prompt("need", due_s=2.0), 3, 0) == (False, ["new", "old"])
    assert preempted_for(decode("need", 16, due_s=2.0), 3, 0) == (True, ["new", "old", "later"])
    assert preempted_for(decode("need", 16, due_s=2.0), 4, 0) == (False, ["new", "old", "later"])


def moved(
    running: list[Job], waiting: list[Job], free_blocks: int, tokens: int = 8192, slots: int = 256
) -> OpenBatch:
    batch = OpenBatch(replica(running, waiting, free_blocks, tokens=tokens, slots=slots))
    force_oldest_progress(batch)
    return batch


def test_if_no_request_could_progress_the_first_started_does_and_the_last_is_preempted() -> None:
    running = [prompt("first", 100, done=16), prompt("second", 100, done=32), prompt("third", 100, done=32)]
    batch = moved(running, [prompt("w")], free_blocks=2)
    assert (batch.tokens, list(batch.preempted)) == ({"first": 84}, ["third", "second"])
    batch = moved(running, [prompt("w")], free_blocks=6, slots=3)
    assert (batch.tokens, list(batch.preempted)) == ({"first": 84}, [])
    begun = [prompt("first", 100, done=1), prompt("second", 100, done=32)]
    batch = moved(begun, [], free_blocks=6, slots=2)
    assert (batch.tokens, list(batch.preempted)) == ({"first": 99}, [])


def test_if_no_request_runs_the_first_that_fits_starts_with_a_full_batch() -> None:
    waiting = [prompt("huge", 200), prompt("whole", 160), prompt("small", 10)]
    assert moved([], waiting, free_blocks=10).tokens == {"whole": 160}
    assert moved([], waiting, free_blocks=10, tokens=64).tokens == {"huge": 64}
    assert moved([], [], free_blocks=10).tokens == {}


def test_a_non_empty_batch_is_unchanged() -> None:
    batch = OpenBatch(replica([decode("a"), decode("b")], []))
    batch.add(decode("b"), 1)
    force_oldest_progress(batch)
    assert batch.tokens == {"b": 1}
