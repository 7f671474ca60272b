"""The rate of prefill beside decodes, worked out by hand on an engine of round numbers."""

from math import inf

import pytest
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.forecast.prefill_rate import PrefillRate, prefill_rate
from penstock_core.timing.batch_length import ORDINARY_BATCH_S
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork, Term, TimeModel

ROUND = TimeModel("round", (Term(1e-4, 0.010),))
"""10 ms an iteration, and a tenth of a millisecond a token."""
SLOW = TimeModel("slow", (Term(0.02, 0.1),))
READING = TimeModel("reading", (Term(1e-4, 0.010),), context_token_s=1e-6)
DRAFTING = Speculation(3, 1.0)


def rate(
    decodes: BatchWork,
    tightest_s: float,
    *,
    model: TimeModel = ROUND,
    batch_tokens: int = 8192,
    speculation: Speculation | None = None,
) -> tuple[float, float]:
    """Return the period, and the tokens of prefill in it."""
    limits = Limits(batch_tokens=batch_tokens)
    view = ReplicaView(0.0, 0.0, (), (), KvCache(100, 100, 16), limits, model, speculation)
    found = prefill_rate(view, decodes, tightest_s, ORDINARY_BATCH_S)
    return found.period_s, found.period_s * found.tokens_s


def test_without_decodes_a_period_is_the_longest_batch() -> None:
    assert rate(BatchWork(0), inf) == pytest.approx((0.060, 500))
    assert rate(BatchWork(0), inf, model=SLOW) == pytest.approx((0.24, 7))
    assert rate(BatchWork(0), inf, speculation=DRAFTING) == pytest.approx((0.060, 500))


def test_decodes_take_their_tokens_from_the_tightest_period() -> None:
    assert rate(BatchWork(100), 0.050) == pytest.approx((0.050, 300))
    assert rate(BatchWork(400), 0.200) == pytest.approx((0.100, 500)), "twice the decodes' own batch"
    assert rate(BatchWork(100, 10_000), 0.050, model=READING) == pytest.approx((0.050, 200))


def test_the_engines_bound_holds_and_decodes_may_leave_no_tokens() -> None:
    assert rate(BatchWork(100), 0.050, batch_tokens=200) == pytest.approx((0.050, 100))
    assert rate(BatchWork(100), 0.050, batch_tokens=90) == (0.050, 0)
    assert rate(BatchWork(500), 0.050) == (0.050, 0)


def test_drafts_lengthen_the_period_and_take_tokens_from_it() -> None:
    """Each decode has 4 tokens in a batch, and all are accepted: it needs a batch every four targets."""
    assert rate(BatchWork(10), 0.005, speculation=DRAFTING) == pytest.approx((0.020, 60))
    assert rate(BatchWork(10), 0.050, speculation=DRAFTING) == pytest.approx((0.060, 460))


def test_a_prefill_takes_its_tokens_at_the_rate_and_its_attention() -> None:
    attending = TimeModel("attending", (Term(1e-4, 0.010),), prefill_work_s=1e-7, scale=2.0)
    assert PrefillRate(0.05, 1000.0).seconds(attending, 500, 1e6) == pytest.approx(0.5 + 0.2)
    assert PrefillRate(0.05, 0.0).seconds(attending, 500, 1e6) == inf
