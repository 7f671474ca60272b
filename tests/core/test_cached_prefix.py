"""Decisions with a cached prefix: prefills are shorter, and shared blocks are counted once."""

from dataclasses import replace
from typing import Any

import pytest
from penstock_core.batch.forced_progress import force_oldest_progress
from penstock_core.batch.open_batch import OpenBatch
from penstock_core.domain.replica_admission import joint_verdict
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import (
    Job,
    Request,
    advance,
    holding_cached,
    holding_kv,
    new_job,
    preempted,
    with_cached_prefix,
)
from penstock_core.domain.slo import Targets
from penstock_core.domain.verdict import Admitted, Reason, Rejected
from penstock_core.forecast.prefill_queue import full_batches
from penstock_core.forecast.snapshot import snapshot
from penstock_core.policies import POLICIES, build
from penstock_core.policies.slos_serve.policy import SlosServe
from penstock_core.timing.builtin_models import time_model

MODEL = time_model("llama-3-8b-a100")
SIZE = 16


def asks(name: str, prompt: int = 4000, *, ttft_s: float | None = 1.0, best_effort: bool = False) -> Job:
    request = Request(name, "tier", 0.0, prompt, 500, Targets(ttft_s, 0.1))
    return new_job(request, 100, best_effort)


def runs(name: str, prompt: int = 400) -> Job:
    return advance(asks(name, prompt), prompt, 1, 0.0)


def replica(
    running: tuple[Job, ...] = (),
    waiting: tuple[Job, ...] = (),
    *,
    total_blocks: int = 1000,
    free_blocks: int | None = None,
    shared: dict[str, int] | None = None,
    limits: Limits | None = None,
) -> ReplicaView:
    held = sum(-(-job.computed_tokens // SIZE) for job in running)
    free = total_blocks - held if free_blocks is None else free_blocks
    kv = KvCache(total_blocks, free, SIZE, shared)
    return ReplicaView(0.0, 0.0, running, waiting, kv, limits or Limits(), MODEL)


def test_a_cached_prefix_counts_as_computed_but_not_as_held() -> None:
    job = with_cached_prefix(asks("a", 100), 64, 3)
    assert (job.pending_tokens, job.holds_kv, job.decoding) == (36, False, False)
    assert holding_kv([job, runs("b"), asks("c")]) == [runs("b")]
    assert with_cached_prefix(asks("a"), 0, 0) == asks("a")


def test_a_job_that_has_begun_holds_its_blocks() -> None:
    assert advance(asks("a", 100), 50, 0, 0.0).holds_kv
    assert runs("a").holds_kv
    assert not preempted(runs("a")).holds_kv


@pytest.mark.parametrize("unheld", [0, 2, 4])
def test_starting_takes_a_slot_the_rest_of_the_prompt_and_unheld_cached_blocks(
    unheld: int,
) -> None:
    batch = OpenBatch(replica(free_blocks=100, limits=Limits(running=5)))
    job = with_cached_prefix(asks("a", 100), 64, unheld)
    assert batch.blocks_wanted(job, 36) == 3 + unheld
    batch.add(job, 36)
    assert (batch.free_blocks, batch.free_slots) == (100 - 3 - unheld, 4)


def test_a_partly_cached_prompt_starts_only_if_all_of_it_fits() -> None:
    job = with_cached_prefix(asks("a", 100), 64, 2)
    for free_blocks, tokens in ((5, {"a": 36}), (4, {})):
        batch = OpenBatch(replica(free_blocks=free_blocks))
        batch.add_prompt(job, 1.0, iter(()))
        assert batch.tokens == tokens


def test_preempting_frees_only_blocks_that_no_other_request_holds() -> None:
    view = replica((runs("a", 160), runs("b", 160)), free_blocks=0, shared={"a": 6})
    batch = OpenBatch(view)
    batch.preempt(view.running[0])
    assert batch.free_blocks == 10 - 6
    batch.preempt(view.running[1])
    assert batch.free_blocks == 4 + 10


def test_the_oldest_request_waits_while_other_waiting_ones_hold_its_blocks() -> None:
    job = asks("a", 160)
    batch = OpenBatch(replica(waiting=(job,), total_blocks=12, free_blocks=9))
    force_oldest_progress(batch)
    assert not batch.tokens
    batch = OpenBatch(replica(waiting=(job,), total_blocks=12, free_blocks=10))
    force_oldest_progress(batch)
    assert batch.tokens == {"a": 160}


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_computes_only_the_uncached_part_of_a_prompt(name: str) -> None:
    policy: Any = build(name)
    job = with_cached_prefix(asks("a", 4000), 3936, 200)
    step, _ = policy.step(replica(waiting=(job,)), policy.start())
    assert step.tokens == {"a": 64}


def test_the_forecast_with_a_cached_prefix_is_shorter() -> None:
    whole, cached = asks("a"), with_cached_prefix(asks("a"), 3200, 200)
    view = replica((runs("d"),))
    assert full_batches(view, [cached], 1, 400).seconds < full_batches(view, [whole], 1, 400).seconds
    policy = SlosServe()
    (long,), (short,) = policy.admit(view, [whole]), policy.admit(view, [cached])
    assert isinstance(long, Admitted) and isinstance(short, Admitted)
    assert short.ttft_predicted_s < long.ttft_predicted_s
    waiting, queued = replica(waiting=(cached,)), replica(waiting=(whole,))
    assert snapshot(waiting).prefill_tokens_left == 800
    assert snapshot(waiting).prefill_wait_s < snapshot(queued).prefill_wait_s


def test_a_request_that_needs_a_cached_prefix_is_admitted_with_a_mark() -> None:
    policy, view = SlosServe(), replica()
    tight = asks("a", 8000, ttft_s=MODEL.prefill_seconds(8000) / 4)
    assert policy.admit(view, [tight]) == [Rejected(Reason.NEVER)]
    (verdict,) = policy.admit(view, [with_cached_prefix(tight, 7904, 494)])
    assert isinstance(verdict, Admitted)
    assert verdict.counts_on_cache


def test_an_admission_that_needs_no_cached_prefix_is_not_marked() -> None:
    (verdict,) = SlosServe().admit(replica(), [asks("a", 100)])
    assert isinstance(verdict, Admitted)
    assert not verdict.counts_on_cache


def test_all_answers_of_a_request_are_marked_if_one_needs_the_cache() -> None:
    alone = Admitted(0.1, 0.1)
    assert not joint_verdict([alone, alone]).counts_on_cache  # type: ignore[union-attr]
    assert joint_verdict([alone, replace(alone, counts_on_cache=True)]).counts_on_cache  # type: ignore[union-attr]


def test_a_job_that_has_taken_its_cached_prefix_holds_it() -> None:
    job = asks("a", 100)
    seen = with_cached_prefix(job, 64, 4)
    taken = holding_cached(seen)
    assert (taken.computed_tokens, taken.unheld_blocks) == (64, None)
    assert (holding_kv([seen]), holding_kv([taken])) == ([], [taken])
    assert holding_cached(job) is job
