"""Longest duration of a batch in which no token is due."""

import pytest
from penstock_core.timing.batch_length import ordinary_batch_s, smooth_batch_tokens
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.time_model import ONE_TOKEN, BatchWork


def test_an_ordinary_batch_is_four_shortest_ones_and_not_below_60_ms() -> None:
    assert ordinary_batch_s(0.020) == pytest.approx(0.080)
    assert ordinary_batch_s(0.010) == 0.060


def test_an_ordinary_batch_is_shorter_if_that_wastes_little() -> None:
    assert ordinary_batch_s(0.002) == pytest.approx(8 * 0.002)


@pytest.mark.parametrize("name", ["llama-3-8b-h100", "llama-3-8b-a100", "slos-serve-opt-6.7b-a100"])
def test_beside_judged_gaps_a_batch_has_tokens_for_three_shortest_ones(name: str) -> None:
    model = time_model(name)
    tokens, shortest_s = smooth_batch_tokens(model), model.seconds(ONE_TOKEN)
    assert model.seconds(BatchWork(tokens)) <= 3 * shortest_s < model.seconds(BatchWork(tokens + 1))
