"""The future peak equals a step-by-step count of blocks."""

from functools import partial
from random import Random

import numpy as np
import pytest
from penstock_core.domain.replica_view import KvCache
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.forecast.kv_forecast import (
    MOST_BUCKETS,
    UNKNOWN_DELAY_STEPS,
    first_fit,
    forecast,
    forecast_jobs,
)

as_ints = partial(np.asarray, dtype=np.int64)
KV = KvCache(0, 0, 16)
"""Blocks of 16 tokens, of which no request is known to share any; a forecast needs no more of it."""


def count_blocks(requests: list[tuple[int, int]], step: int, size: int = 16) -> int:
    """Return the blocks held in one step by requests with these present and remaining tokens."""
    return sum(-(-(now + step) // size) for now, left in requests if step < left)


def peak(requests: list[tuple[int, int]], delays: list[int] | None = None) -> int:
    now, left = as_ints([r[0] for r in requests]), as_ints([r[1] for r in requests])
    delay = as_ints(delays or [0] * len(requests))
    return forecast([], KV, now, left, delay).peak_blocks


def test_peak_is_exact_while_every_end_has_a_bucket() -> None:
    random = Random(1)
    for _ in range(200):
        requests = [(random.randint(1, 900), random.randint(1, 300)) for _ in range(random.randint(1, 40))]
        assert peak(requests) == max(count_blocks(requests, step) for step in range(300))


def test_requests_that_end_at_different_times_need_less_than_their_summed_peaks() -> None:
    requests = [(160, 160), (304, 16)]
    assert peak(requests) == 10 + 1 + 20
    assert peak(requests) < 20 + 20


def test_shared_buckets_are_an_upper_bound() -> None:
    random = Random(2)
    requests = [(random.randint(1, 900), random.randint(1, 2000)) for _ in range(300)]
    exact = max(count_blocks(requests, step) for step in range(2000))
    sizes, left = as_ints(requests).T
    assert len(forecast([], KV, sizes, left).ends) == MOST_BUCKETS
    assert exact <= peak(requests) <= 1.05 * exact
    assert forecast([], KV, sizes, left).ends[-1] == max(left) - 1


def test_a_delayed_start_is_covered_at_every_time() -> None:
    requests = [(160, 160), (160, 40)]
    bound = peak(requests, [0, 50])
    for start in range(51):
        late = [sum(-(-(160 + s) // 16) for s in [step - start] if 0 <= s < 40) for step in range(200)]
        assert bound >= max(count_blocks(requests[:1], step) + late[step] for step in range(200))


def test_an_unknown_start_holds_its_blocks_to_the_end() -> None:
    now, left, delay = as_ints([160, 16]), as_ints([16, 16]), as_ints([0, UNKNOWN_DELAY_STEPS])
    rows = forecast([], KV, now, left, delay).blocks
    assert rows.tolist() == [[11, 0], [2, 2]]
    assert rows.dtype == np.int64


def decode(context: int, left: int) -> Job:
    """Return a decode that holds this many tokens with its next one, with `left` tokens to come."""
    job = new_job(Request("a", "tier", 0.0, context - 1, 4096), left + 1, best_effort=False)
    return advance(job, context - 1, 1, 0.0)


def fitting(kv: KvCache, running: list[Job], candidates: list[Job]) -> list[bool]:
    """Each candidate beside those before it that fit, counted step by step."""

    def held(jobs: list[Job]) -> int:
        requests = [(job.request.prompt_tokens + 1, job.output_tokens_left) for job in jobs]
        capped = [
            (now, min(left, max(kv.total_blocks * kv.block_tokens - now + 1, 1))) for now, left in requests
        ]
        return max(count_blocks(capped, step, kv.block_tokens) for step in range(400))

    there, fits = list(running), []
    for job in candidates:
        fits.append(held([*there, job]) <= kv.total_blocks)
        there += [job] if fits[-1] else []
    return fits


@pytest.mark.parametrize("block_tokens", [1, 16])
@pytest.mark.parametrize("seed", range(30))
def test_a_request_that_fits_beside_the_peak_of_all_earlier_ones_fits(seed: int, block_tokens: int) -> None:
    random = Random(seed)
    for _ in range(5):
        jobs = [decode(random.randint(2, 300), random.randint(1, 300)) for _ in range(random.randint(1, 7))]
        running = jobs[: random.randint(0, 2)]
        candidates, total_blocks = jobs[len(running) :], random.randint(80, 900) // block_tokens
        kv = KvCache(total_blocks, total_blocks, block_tokens)
        assert first_fit(kv, running, candidates) == fitting(kv, running, candidates)


@pytest.mark.parametrize(("context", "left"), [(160, 1), (145, 16), (1, 160), (17, 400)])
def test_a_request_that_fills_the_cache_to_its_last_token_fits(context: int, left: int) -> None:
    kv = KvCache(10, 10, 16)
    assert first_fit(kv, [], [decode(context, left)]) == [True]
    assert first_fit(kv, [], [decode(context, left), decode(2, 158)]) == [True, False]
    assert first_fit(kv, [], [decode(161, left)]) == [False]
    assert first_fit(kv, [decode(16, 1)], []) == []


def test_jobs_are_counted_at_their_full_size_from_now_on() -> None:
    kv = KvCache(100, 100, 16)
    assert forecast_jobs([decode(16, 1)], kv).peak_blocks == 1
    assert forecast_jobs([decode(16, 2)], kv).peak_blocks == 2
    assert forecast_jobs([], kv).peak_blocks == 0
