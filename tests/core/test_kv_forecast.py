"""The future peak is what a step-by-step count of blocks comes to."""

from functools import partial
from random import Random

import numpy as np
from penstock_core.forecast.kv_forecast import MOST_BUCKETS, UNKNOWN_DELAY_STEPS, forecast

as_ints = partial(np.asarray, dtype=np.int64)


def count_blocks(requests: list[tuple[int, int]], step: int) -> int:
    """Blocks of 16 held in one step by requests of so many tokens now and so many left."""
    return sum(-(-(now + step) // 16) for now, left in requests if step < left)


def peak(requests: list[tuple[int, int]], delays: list[int] | None = None) -> int:
    now, left = as_ints([r[0] for r in requests]), as_ints([r[1] for r in requests])
    delay = as_ints(delays or [0] * len(requests))
    return forecast(now, left, 16, delay).peak_blocks


def test_peak_is_exact_while_every_end_has_a_bucket() -> None:
    random = Random(1)
    for _ in range(200):
        requests = [(random.randint(1, 900), random.randint(1, 300)) for _ in range(random.randint(1, 40))]
        assert peak(requests) == max(count_blocks(requests, step) for step in range(300))


def test_requests_that_end_apart_need_less_than_their_peaks_together() -> None:
    requests = [(160, 160), (304, 16)]
    assert peak(requests) == 10 + 1 + 20
    assert peak(requests) < 20 + 20


def test_shared_buckets_are_an_upper_bound() -> None:
    random = Random(2)
    requests = [(random.randint(1, 900), random.randint(1, 2000)) for _ in range(300)]
    exact = max(count_blocks(requests, step) for step in range(2000))
    sizes, left = as_ints(requests).T
    assert len(forecast(sizes, left, 16).ends) == MOST_BUCKETS
    assert exact <= peak(requests) <= 1.05 * exact


def test_a_delayed_start_is_covered_wherever_it_falls() -> None:
    requests = [(160, 160), (160, 40)]
    bound = peak(requests, [0, 50])
    for start in range(51):
        late = [sum(-(-(160 + s) // 16) for s in [step - start] if 0 <= s < 40) for step in range(200)]
        assert bound >= max(count_blocks(requests[:1], step) + late[step] for step in range(200))


def test_an_unknown_start_is_held_to_the_end() -> None:
    now, left, delay = as_ints([160, 16]), as_ints([16, 16]), as_ints([0, UNKNOWN_DELAY_STEPS])
    rows = forecast(now, left, 16, delay).blocks
    assert rows.tolist() == [[11, 0], [2, 2]]
    assert rows.dtype == np.int64
