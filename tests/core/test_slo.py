"""Targets, the deadline of each token, and judgement."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.slo import (
    NO_DEADLINE_S,
    Anchor,
    Judge,
    Slo,
    Targets,
    Tier,
    anchor_after,
    first_token_due_s,
    judged_tpot_s,
    next_token_due_s,
    tpot_target_s,
)

paces = st.floats(0.001, 2.0)


def test_slowdown_becomes_a_duration_of_this_prompt() -> None:
    assert Slo(ttft_slowdown=5, tpot_s=0.1).targets(idle_prefill_s=0.2) == Targets(1.0, 0.1)


def test_a_tier_has_value_one_and_no_targets_by_default() -> None:
    assert Tier("t") == Tier("t", Slo(), 1.0, best_effort=False, allow_request_targets=False)


def test_plain_ttft_does_not_depend_on_the_prompt() -> None:
    assert Slo(ttft_s=0.8).targets(idle_prefill_s=0.2).ttft_s == 0.8


def test_first_token_is_due_by_its_own_target_then_by_half_of_e2e() -> None:
    assert first_token_due_s(10, Targets(ttft_s=1, e2e_s=30)) == 11
    assert first_token_due_s(10, Targets(e2e_s=30)) == 25
    assert first_token_due_s(10, Targets()) == NO_DEADLINE_S


def test_the_tpot_target_is_the_tighter_of_tpot_and_the_rest_of_e2e() -> None:
    assert tpot_target_s(Targets(tpot_s=0.1), output_tokens=50) == 0.1
    assert tpot_target_s(Targets(ttft_s=2, tpot_s=0.1, e2e_s=7), output_tokens=101) == pytest.approx(0.05)
    assert tpot_target_s(Targets(e2e_s=10), output_tokens=11) == pytest.approx(0.5)
    assert tpot_target_s(Targets(e2e_s=10), output_tokens=1) is None
    assert tpot_target_s(Targets(e2e_s=10), output_tokens=2) == 5.0
    assert tpot_target_s(Targets(ttft_s=5, e2e_s=3), output_tokens=11) == 0.0
    assert tpot_target_s(Targets(), output_tokens=10) is None


def test_token_without_a_tpot_is_never_due() -> None:
    assert next_token_due_s(Anchor(5, 1), 7, None) == NO_DEADLINE_S


def test_under_mean_tokens_use_the_lead_of_earlier_ones_but_not_of_the_first() -> None:
    first = anchor_after(Judge.MEAN, None, 1, now_s=2.0)
    later = anchor_after(Judge.MEAN, first, 8, now_s=2.1)
    assert later == Anchor(2.0, 1)
    assert next_token_due_s(later, 8, 0.1) == pytest.approx(2.8)


def test_a_new_window_starts_every_ten_tokens() -> None:
    anchor = Anchor(2.0, 1)
    assert anchor_after(Judge.WINDOW, anchor, 10, now_s=2.5) == anchor
    assert anchor_after(Judge.WINDOW, anchor, 11, now_s=2.6) == Anchor(2.6, 11)


def test_tokens_returned_with_the_last_of_a_window_are_ahead_in_the_next() -> None:
    assert anchor_after(Judge.WINDOW, Anchor(2.0, 1), 13, now_s=2.6) == Anchor(2.6, 11)
    assert anchor_after(Judge.WINDOW, Anchor(2.0, 1), 22, now_s=2.6) == Anchor(2.6, 21)


def test_under_max_every_gap_counts_from_the_previous_token() -> None:
    assert anchor_after(Judge.MAX, Anchor(2.0, 1), 2, now_s=2.5) == Anchor(2.5, 2)


def test_one_token_has_no_tpot() -> None:
    assert judged_tpot_s([3.0], Judge.MEAN) is None
    assert judged_tpot_s([], Judge.MAX) is None


def test_judges_differ_on_a_stall() -> None:
    times_s = [0.1 * k for k in range(11)] + [2.0 + 0.1 * k for k in range(10)]
    assert judged_tpot_s(times_s, Judge.MAX) == pytest.approx(1.0)
    assert judged_tpot_s(times_s, Judge.WINDOW) == pytest.approx(0.19)
    assert judged_tpot_s(times_s, Judge.MEAN) == pytest.approx(2.9 / 20)


def test_every_gap_counts_and_the_last_window_may_be_shorter() -> None:
    assert judged_tpot_s([0.0, 1.0, 1.2], Judge.MAX) == 1.0
    assert judged_tpot_s([0.0, 0.2, 1.2], Judge.MAX) == 1.0
    twelve_s = [0.1 * k for k in range(11)] + [3.0]
    assert judged_tpot_s(twelve_s, Judge.WINDOW) == pytest.approx(2.0)
    assert judged_tpot_s([0.0, 0.5], Judge.WINDOW) == 0.5


@given(st.lists(st.floats(0, 1), min_size=2, max_size=60), paces, st.sampled_from(Judge))
def test_tokens_on_their_due_times_are_judged_on_tpot(leads: list[float], pace: float, judge: Judge) -> None:
    """Whatever lead each token has over its due time, meeting all deadlines meets the judged TPOT target."""
    times_s = [0.0]
    anchor = anchor_after(judge, None, 1, 0.0)
    for generated, lead in enumerate(leads, start=1):
        due_s = next_token_due_s(anchor, generated, pace)
        now_s = max(times_s[-1], due_s - lead * pace)
        times_s.append(now_s)
        anchor = anchor_after(judge, anchor, generated + 1, now_s)
    judged = judged_tpot_s(times_s, judge)
    assert judged is not None
    assert judged <= pace * (1 + 1e-9) or math.isclose(judged, pace)


def test_the_shorter_of_a_duration_and_a_slowdown_is_the_target() -> None:
    slo = Slo(ttft_s=2.0, ttft_slowdown=5.0)
    assert slo.targets(0.1).ttft_s == 0.5
    assert slo.targets(1.0).ttft_s == 2.0
