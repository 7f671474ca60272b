"""A batch under construction counts its blocks, slots, tokens and time exactly."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.batch.open_batch import OpenBatch
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork, Term, TimeModel, chunk_work
from replica_views import kv_cache

MODEL = TimeModel("attending", (Term(1e-3, 0.010, 2e-3),), 1e-5, 1e-7)
SIZE = 16


def prompt(name: str, tokens: int = 100, done: int = 0) -> Job:
    job = new_job(Request(name, "tier", 0.0, tokens, 500), 200, best_effort=False)
    return job._replace(computed_tokens=done)


def decode(name: str, context: int = 100) -> Job:
    return advance(prompt(name, context), context, 1, 0.0)


def opened(*running: Job, waiting: tuple[Job, ...] = (), free_blocks: int = 1000, **bounds: int) -> OpenBatch:
    kv = kv_cache(running, free_blocks, SIZE)
    return OpenBatch(ReplicaView(0.0, 0.0, running, waiting, kv, Limits(**bounds), MODEL))


def blocks(tokens: int) -> int:
    return -(-tokens // SIZE)


JOBS = st.lists(
    st.tuples(st.sampled_from(["prompt", "chunk", "decode"]), st.integers(2, 200), st.integers(1, 199)),
    min_size=1,
    max_size=8,
)


def job_of(name: str, kind: str, tokens: int, done: int) -> Job:
    if kind == "decode":
        return decode(name, tokens)
    return prompt(name, tokens, min(done, tokens - 1) if kind == "chunk" else 0)


@given(JOBS, st.data())
def test_a_batch_tracks_its_tokens_blocks_and_duration(
    kinds: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    jobs = [job_of(f"j{i}", *kind) for i, kind in enumerate(kinds)]
    running = [job for job in jobs if job.computed_tokens]
    batch = opened(*running, waiting=tuple(job for job in jobs if not job.computed_tokens), running=32)
    free_blocks, slots = 1000, 32 - len(running)
    work = BatchWork(0)
    for job in jobs:
        what = data.draw(st.sampled_from(["leave", "preempt", "add", "draft"]))
        if what == "preempt" and job.computed_tokens:
            batch.preempt(job)
            free_blocks, slots = free_blocks + blocks(job.computed_tokens), slots + 1
        elif what in {"add", "draft"}:
            tokens = data.draw(st.integers(1, job.pending_tokens))
            drafts = data.draw(st.integers(0, 40)) if what == "draft" and job.decoding else 0
            batch.add(job, tokens)
            batch.draft(job, drafts)
            end = job.computed_tokens + tokens + drafts
            free_blocks -= blocks(end) - blocks(job.computed_tokens)
            slots -= not job.computed_tokens
            work = BatchWork(
                work.tokens + tokens + drafts,
                work.context_tokens + (job.computed_tokens + 1 if job.decoding else 0),
                work.prefill_work + (0 if job.decoding else chunk_work(tokens, job.computed_tokens)),
                max(work.spec_steps, drafts),
            )
            assert batch.tokens[job.request.id] == tokens
            assert batch.drafts.get(job.request.id, 0) == drafts
    assert (batch.free_blocks, batch.free_slots) == (free_blocks, slots)
    assert batch.work == work
    assert batch.left_tokens == 8192 - work.tokens
    step = batch.step()
    assert (step.duration_s, step.repeatable_blocks) == (MODEL.seconds(work), None)
    assert (step.tokens, step.drafts, step.preempt) == (batch.tokens, batch.drafts, tuple(batch.preempted))
    longer = BatchWork(work.tokens + 3, work.context_tokens + 50, work.prefill_work + 1e4, work.spec_steps)
    assert batch.seconds(3, 50, 1e4) == MODEL.seconds(longer)
    assert batch.seconds() == step.duration_s
    drafting = longer._replace(
        tokens=work.tokens + 9, context_tokens=work.context_tokens, prefill_work=work.prefill_work
    )
    assert batch.seconds_drafting(9) == MODEL.seconds(drafting._replace(spec_steps=max(work.spec_steps, 9)))


@given(st.lists(st.integers(1, 200), min_size=1, max_size=8), st.integers(0, 20))
def test_decodes_added_together_are_as_if_added_one_by_one(contexts: list[int], drafts: int) -> None:
    decodes = [decode(f"d{i}", context) for i, context in enumerate(contexts)]
    together, apart = opened(*decodes), opened(*decodes)
    together.decode_all(decodes)
    assert together.draft_all([(job, drafts) for job in decodes], 1e9)
    for job in decodes:
        apart.add(job, 1)
        apart.draft(job, drafts)
    assert (together.tokens, together.work) == (apart.tokens, apart.work)
    assert {name: count for name, count in together.drafts.items() if count} == apart.drafts
    assert (together.free_blocks, together.free_slots) == (apart.free_blocks, apart.free_slots)


def test_drafts_for_all_fit_the_available_tokens_blocks_and_time() -> None:
    """Two decodes with 14 tokens in a block of 16: two drafts each need a block each, six tokens in all."""
    decodes = [decode(name, 13) for name in "ab"]
    wanted = [(job, 3) for job in decodes]

    def fits(limit_s: float, free_blocks: int, batch_tokens: int) -> bool:
        batch = opened(*decodes, free_blocks=free_blocks, batch_tokens=batch_tokens)
        batch.decode_all(decodes)
        return batch.draft_all(wanted, limit_s)

    limit_s = MODEL.seconds(BatchWork(8, 28, 0.0, 3))
    assert fits(limit_s, 2, 8)
    assert not fits(limit_s - 1e-9, 2, 8)
    assert not fits(limit_s, 1, 8)
    assert not fits(limit_s, 2, 7)


def test_a_job_needs_the_blocks_that_its_next_tokens_begin() -> None:
    batch = opened(free_blocks=2)
    assert [batch.blocks_wanted(prompt("a", 200, done), 16) for done in (0, 1, 15, 16)] == [1, 1, 1, 1]
    assert [batch.blocks_wanted(prompt("a", 200, 15), tokens) for tokens in (1, 2, 17, 18)] == [0, 1, 1, 2]
    assert [batch.room_tokens(prompt("a", 200, done)) for done in (0, 1, 16, 17)] == [32, 47, 32, 47]


def test_a_chunk_is_limited_by_time_the_prompt_and_the_batch() -> None:
    batch = opened(batch_tokens=80)
    batch.add(decode("d"), 1)
    assert batch.largest_chunk(prompt("a", 50), 9.0) == 50
    assert batch.largest_chunk(prompt("a", 500), 9.0) == 79
    limit_s = batch.seconds(20, 0, chunk_work(20, 40))
    assert batch.largest_chunk(prompt("a", 500, 40), limit_s) == 20
    assert batch.largest_chunk(prompt("a", 500, 40), limit_s - 1e-9) == 19
    assert batch.largest_chunk(prompt("a", 500, 40), 0.0) == 0


def test_an_empty_batch_gets_a_chunk_however_short_its_limit_is() -> None:
    batch, job = opened(batch_tokens=80), prompt("a", 500, 40)
    one_s = batch.seconds(1, 0, chunk_work(1, 40))
    chunk = batch.largest_chunk(job, 0.0)
    assert batch.largest_chunk(job, one_s) == 1 < chunk
    assert batch.seconds(chunk, 0, chunk_work(chunk, 40)) <= 2 * one_s


def test_a_job_is_not_preempted_twice_or_while_in_the_batch() -> None:
    served, idle = decode("served"), decode("idle")
    batch = opened(served, idle, free_blocks=0, running=2)
    batch.add(served, 1)
    for _ in range(2):
        batch.preempt_idle(served)
        batch.preempt_idle(idle)
    assert list(batch.preempted) == ["idle"]
    assert (batch.free_blocks, batch.free_slots) == (blocks(100), 1)


@pytest.mark.parametrize(
    ("wanted", "slots", "given", "there"),
    [
        (0, 0, "", True),
        (7, 1, "a", True),
        (7, 2, "ab", True),
        (8, 0, "ab", True),
        (15, 0, "abc", True),
        (22, 0, "abc", False),
        (1, 4, "abc", False),
    ],
)
def test_victims_are_preempted_in_their_order_and_no_more_of_them_than_needed(
    wanted: int, slots: int, given: str, there: bool
) -> None:
    running = [decode(name) for name in "abc"]
    batch = opened(*running, free_blocks=0, running=3)
    assert batch.make_room(wanted, slots, running) is there
    assert "".join(batch.preempted) == given


def test_a_step_repeats_until_its_tokens_may_run_out_of_blocks() -> None:
    decodes = [decode(name) for name in "abc"]

    def repeats(batch: OpenBatch) -> int | None:
        return batch.repeatable_step().repeatable_blocks

    batch = opened(*decodes)
    assert repeats(batch) is None
    batch.decode_all(decodes)
    assert repeats(batch) == 3
    alone = opened(decodes[0])
    alone.decode_all(decodes[:1])
    assert repeats(alone) == 1
    batch.view = replace(batch.view, speculation=Speculation(2, 0.7))
    assert repeats(batch) is None
    waited_for = opened(*decodes, waiting=(prompt("w"),))
    waited_for.decode_all(decodes)
    assert repeats(waited_for) is None
    some = opened(*decodes)
    some.decode_all(decodes[:2])
    assert repeats(some) is None
    last_token = opened(prompt("a", 100, 99))
    last_token.add(prompt("a", 100, 99), 1)
    assert repeats(last_token) is None
