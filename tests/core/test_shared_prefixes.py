"""Blocks that several requests hold are counted once in forecasts at every step, never less than that."""

from dataclasses import replace
from itertools import combinations
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job, with_cached_prefix
from penstock_core.domain.shared_prefixes import common_with, shared_prefixes
from penstock_core.domain.slo import Targets
from penstock_core.domain.verdict import Admitted, Reason, Rejected
from penstock_core.forecast.kv_forecast import first_fit, forecast_jobs
from penstock_core.forecast.snapshot import snapshot
from penstock_core.policies.slos_serve.policy import SlosServe
from penstock_core.timing.builtin_models import time_model

SIZE = 16


class Holder(NamedTuple):
    """A decode and the blocks that it holds."""

    job: Job
    blocks: list[int]


def decode(name: str, tokens: int, left: int, *, best_effort: bool = False) -> Job:
    """Return a decode that holds this many tokens with its next one, with `left` tokens to come."""
    request = Request(name, "tier", 0.0, tokens - 1, 4096, Targets(60.0, 1.0))
    return advance(new_job(request, left + 1, best_effort), tokens - 1, 1, 0.0)


def random_holders(random: Random, count: int) -> list[Holder]:
    """Decodes whose prompts are random paths in a tree of blocks, each with blocks of its own behind."""
    holders: list[Holder] = []
    for at in range(count):
        shared = random.choice(holders).blocks if holders and random.random() < 0.8 else []
        prefix = shared[: random.randint(0, len(shared))]
        blocks = [*prefix, *[1000 * (at + 1) + i for i in range(random.randint(1, 8))]]
        tokens = len(blocks) * SIZE - random.randint(0, SIZE - 1)
        holders.append(Holder(decode(f"r{at}", tokens, random.randint(1, 60)), blocks))
    return holders


def kv_of(holders: list[Holder], total_blocks: int = 4096) -> KvCache:
    prefixes = shared_prefixes({holder.job.request.id: holder.blocks for holder in holders})
    return KvCache(total_blocks, total_blocks, SIZE, None, prefixes)


def unknown(kv: KvCache) -> KvCache:
    return replace(kv, shared_prefixes=None)


def held(holders: list[Holder], step: int) -> int:
    """Blocks of the requests that have not ended at this step, each of them once."""
    distinct: set[object] = set()
    for job, blocks in holders:
        if step < job.output_tokens_left:
            size = -(-(job.request.prompt_tokens + job.generated_tokens + step) // SIZE)
            distinct |= set(blocks) | {(job.request.id, i) for i in range(len(blocks), size)}
    return len(distinct)


def bucket_of(ends: list[int], step: int) -> int:
    return int(np.searchsorted(ends, step))


@pytest.mark.parametrize("seed", range(40))
def test_shared_blocks_are_counted_once_at_every_step(seed: int) -> None:
    random = Random(seed)
    holders = random_holders(random, random.randint(1, 12))
    random.shuffle(holders)
    kv, jobs = kv_of(holders), [holder.job for holder in holders]
    future = forecast_jobs(jobs, kv)
    assert (future.usage <= forecast_jobs(jobs, unknown(kv)).usage).all()
    for end, blocks in zip(future.ends.tolist(), future.usage.tolist(), strict=True):
        assert blocks == held(holders, end), "usage is highest at the end of a bucket"


@pytest.mark.parametrize("seed", range(40))
def test_requests_outside_of_the_forecast_do_not_hide_blocks_of_those_in_it(seed: int) -> None:
    random = Random(seed)
    holders = random_holders(random, 10)
    kv, some = kv_of(holders), random.sample(holders, 5)
    jobs = [holder.job for holder in some]
    future = forecast_jobs(jobs, kv)
    assert future.usage.tolist() == [held(some, end) for end in future.ends.tolist()]


@pytest.mark.parametrize("seed", range(40))
def test_every_set_of_candidates_is_counted_with_at_least_its_held_blocks(seed: int) -> None:
    random = Random(seed)
    holders = random_holders(random, 6)
    kv = kv_of(holders)
    candidates: list[Holder] = []
    for at in range(3):
        of, own = random.choice(holders), random.randint(1, 6)
        cached = random.randint(1, len(of.blocks))
        found = of.blocks[:cached]
        blocks = [*found, *[90_000 + 100 * at + i for i in range(own)]]
        request = Request(f"c{at}", "tier", 0.0, len(blocks) * SIZE - 1, 4096)
        job = new_job(request, random.randint(1, 60), best_effort=False)
        seen = with_cached_prefix(job, cached * SIZE, 0, of.job.request.id)
        candidates.append(Holder(seen, blocks))
    everything = [*holders, *candidates]
    jobs = [holder.job for holder in everything]
    future = forecast_jobs(jobs, kv, len(holders))
    rows = future.blocks
    assert (rows <= forecast_jobs(jobs, unknown(kv)).blocks).all()
    for count in range(4):
        for chosen in combinations(range(6, 9), count):
            counted = rows[[*range(6), *chosen]].sum(axis=0).tolist()
            inside = [*holders, *[everything[at] for at in chosen]]
            for end, blocks in zip(future.ends.tolist(), counted, strict=True):
                assert blocks >= held(inside, end)


def test_a_candidate_shares_a_prefix_only_while_a_request_holds_it() -> None:
    holder = Holder(decode("a", 160, 8), list(range(10)))
    job = new_job(Request("c", "tier", 0.0, 191, 4096), 32, best_effort=False)
    kv, seen = kv_of([holder]), with_cached_prefix(job, 128, 0, "a")
    assert forecast_jobs([holder.job, seen], kv, 1).blocks.tolist() == [[11, 0], [13 - 8, 14]]
    unheld = [holder.job, with_cached_prefix(job, 128, 3, "a")]
    assert forecast_jobs(unheld, kv, 1).blocks.tolist() == [[11, 0], [13 - 5, 14]]


def test_a_running_candidate_shares_only_certain_prefixes() -> None:
    one, other = Holder(decode("a", 160, 8), list(range(10))), Holder(decode("b", 160, 32), list(range(10)))
    kv, jobs = kv_of([one, other]), [one.job, other.job]
    assert forecast_jobs(jobs, kv, 1).blocks.tolist() == [[11, 0], [11 - 9, 12]]
    assert forecast_jobs(jobs, kv).blocks.tolist() == [[11 - 10, 0], [11, 12]]


def test_an_estimated_prompt_shorter_than_its_shared_prefix_counts_zero() -> None:
    one, other = Holder(decode("a", 160, 8), list(range(10))), Holder(decode("b", 32, 4), list(range(10)))
    jobs = [one.job, other.job]
    assert forecast_jobs(jobs, kv_of([one, other])).blocks.tolist() == [[11, 11], [0, 0]]


@pytest.mark.parametrize("seed", range(10))
def test_a_request_shares_the_longest_common_prefix(seed: int) -> None:
    holders = random_holders(Random(seed), 10)
    blocks = {holder.job.request.id: holder.blocks for holder in holders}
    kv = KvCache(100, 100, SIZE).with_shared_prefixes(shared_prefixes(blocks))
    shared = {
        name: max(len(set(of).intersection(blocks[other])) for other in blocks if other != name)
        for name, of in blocks.items()
    }
    assert kv.shared_blocks == {name: count for name, count in shared.items() if count}


def test_without_known_sharing_every_request_is_counted_whole() -> None:
    jobs = [decode("a", 160, 8), decode("b", 160, 8)]
    kv = KvCache(100, 100, SIZE)
    assert forecast_jobs(jobs, kv).blocks.tolist() == [[11], [11]]
    known = replace(kv, shared_prefixes=shared_prefixes({}))
    assert forecast_jobs(jobs, known).blocks.tolist() == [[11], [11]]


def test_neighbours_have_the_most_in_common() -> None:
    blocks = {"a": [1, 2, 3, 4], "d": [9], "b": [1, 2, 3, 5, 6], "c": [1, 2, 7], "e": [], "f": [1, 2, 3, 5]}
    prefixes = shared_prefixes(blocks)
    assert prefixes.ids == ["a", "f", "b", "c"]
    assert prefixes.common_blocks == [0, 3, 4, 2]
    assert common_with(prefixes, "f", 9) == {"f": 9, "b": 4, "c": 2, "a": 3}
    assert common_with(prefixes, "b", 1) == {"b": 1, "f": 1, "a": 1, "c": 1}
    assert common_with(prefixes, "d", 1) == {"d": 1}


def test_equal_blocks_after_different_ones_are_not_a_common_prefix() -> None:
    assert shared_prefixes({"a": [1, 2, 3], "b": [7, 2, 3]}).ids == []


def crowd(count: int) -> tuple[list[Holder], Job]:
    """Decodes that share a prompt of 1600 tokens, and a new request that has it cached."""
    holders = [Holder(decode(f"r{at}", 1600 + SIZE, 50), [*range(100), 1000 + at]) for at in range(count)]
    request = Request("c", "tier", 0.0, 1616, 4096, Targets(60.0, 1.0))
    return holders, with_cached_prefix(new_job(request, 50, best_effort=False), 1600, 0, "r0")


def view_of(holders: list[Holder], kv: KvCache) -> ReplicaView:
    jobs = tuple([holder.job for holder in holders])
    return ReplicaView(0.0, 0.0, jobs, (), kv, Limits(), time_model("llama-3-8b-a100"))


def test_requests_with_a_common_prefix_are_admitted_if_only_their_sum_does_not_fit() -> None:
    holders, candidate = crowd(4)
    kv = kv_of(holders, 300)
    policy = SlosServe()
    (verdict,) = policy.admit(view_of(holders, kv), [candidate])
    assert isinstance(verdict, Admitted)
    (verdict,) = policy.admit(view_of(holders, unknown(kv)), [candidate])
    assert isinstance(verdict, Rejected) and verdict.reason is Reason.KV_MEMORY


def test_a_choice_among_candidates_counts_common_prefixes_once() -> None:
    holders, candidate = crowd(4)
    kv = replace(kv_of(holders), total_blocks=126, free_blocks=22)
    several = [
        candidate._replace(request=replace(candidate.request, id=f"c{at}", arrival_s=at / 100))
        for at in range(6)
    ]
    verdicts = SlosServe().admit(view_of(holders, kv), several)
    assert 0 < sum([isinstance(verdict, Admitted) for verdict in verdicts]) < 6


def test_headroom_and_starts_count_common_prefixes_once() -> None:
    holders, candidate = crowd(4)
    kv = kv_of(holders, 300)
    assert snapshot(view_of(holders, kv)).kv_tokens_headroom >= 180 * SIZE
    assert snapshot(view_of(holders, unknown(kv))).kv_tokens_headroom == 0
    jobs = [holder.job for holder in holders]
    assert first_fit(kv, jobs, [candidate]) == [True]
    assert first_fit(unknown(kv), jobs, [candidate]) == [False]
