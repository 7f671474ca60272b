"""Prompts one after the other, in full batches beside the decodes."""

import pytest
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.forecast.prefill_queue import Batches, full_batches
from penstock_core.timing.time_model import BatchWork, Term, TimeModel, chunk_work

MODEL = TimeModel("attending", (Term(1e-3, 0.010),), 1e-5, 1e-6)


def prompt(tokens: int, done: int = 0) -> Job:
    job = new_job(Request("a", "tier", 0.0, tokens, 500), 50, best_effort=False)
    return job._replace(computed_tokens=done)


def batches(*queue: Job, decodes: int = 3, batch_tokens: int = 10) -> Batches:
    view = ReplicaView(0.0, 0.0, (), queue, KvCache(9, 9, 16), Limits(batch_tokens, 8), MODEL)
    return full_batches(view, queue, decodes, 200)


@pytest.mark.parametrize(
    ("tokens", "sizes"), [(1, [1]), (7, [7]), (8, [7, 1]), (14, [7, 7]), (15, [7, 7, 1])]
)
def test_each_batch_has_the_prefill_tokens_that_decodes_leave_room_for(tokens: int, sizes: list[int]) -> None:
    attention = chunk_work(tokens, 0)
    seconds = [MODEL.seconds(BatchWork(3 + size, 200, attention * size / tokens)) for size in sizes]
    assert batches(prompt(tokens)) == Batches(len(sizes), pytest.approx(sum(seconds)))  # type: ignore[arg-type]


def test_consecutive_prompts_have_no_gap() -> None:
    both = batches(prompt(9), prompt(12, done=7))
    attention = chunk_work(9, 0) + chunk_work(5, 7)
    assert both == Batches(2, pytest.approx(2 * MODEL.seconds(BatchWork(10, 200, attention / 2))))  # type: ignore[arg-type]


def test_decodes_that_fill_a_batch_leave_one_token_and_an_empty_queue_takes_no_time() -> None:
    assert batches(prompt(3), decodes=10).iterations == 3
    assert batches() == Batches(0, 0.0)
