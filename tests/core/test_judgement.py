"""Finished requests against the targets they carry."""

import pytest
from penstock_core.domain.judgement import TOLERANCE_S, exceeds, judge
from penstock_core.domain.slo import Judge, Targets


def steady(first_s: float, gap_s: float, tokens: int) -> list[float]:
    return [first_s + gap_s * token for token in range(tokens)]


@pytest.mark.parametrize(
    ("targets", "broken"),
    [
        (Targets(), ()),
        (Targets(ttft_s=1.0, tpot_s=0.1, e2e_s=1.9), ()),
        (Targets(ttft_s=0.9), ("ttft",)),
        (Targets(tpot_s=0.09), ("tpot",)),
        (Targets(e2e_s=1.8), ("e2e",)),
        (Targets(ttft_s=0.5, tpot_s=0.05, e2e_s=1.0), ("ttft", "tpot", "e2e")),
    ],
    ids=["no target", "all kept", "late first token", "slow", "late end", "all broken"],
)
def test_each_target_is_judged_by_its_own_measure(targets: Targets, broken: tuple[str, ...]) -> None:
    judged = judge(targets, 10.0, steady(11.0, 0.1, 10), 0)
    assert judged.broken == broken
    assert judged.met == (not broken)
    assert (judged.ttft_s, judged.tpot_s, judged.e2e_s) == pytest.approx((1.0, 0.1, 1.9))


def test_an_answer_of_one_token_does_not_miss_tpot() -> None:
    judged = judge(Targets(tpot_s=0.001), 0.0, [5.0], 0)
    assert (judged.met, judged.tpot_s) == (True, None)


def test_the_tiers_rule_judges_tpot() -> None:
    times_s = [*steady(0.0, 0.01, 10), 1.0]
    assert judge(Targets(tpot_s=0.2), 0.0, times_s, 0).met
    assert not judge(Targets(tpot_s=0.2, judge=Judge.MAX), 0.0, times_s, 0).met


def test_thinking_and_answer_have_tpots_of_their_own() -> None:
    times_s = [*steady(0.0, 0.02, 11), *steady(0.3, 0.1, 5)]
    targets = Targets(tpot_s=0.03, answer_tpot_s=0.12)
    assert judge(targets, 0.0, times_s, thinking_tokens=11).met
    assert judge(targets, 0.0, times_s, thinking_tokens=14).broken == ("tpot",)


def test_a_request_is_judged_by_its_worse_stage() -> None:
    times_s = [*steady(0.0, 0.02, 11), *steady(0.3, 0.1, 5)]
    slow_answer = judge(Targets(tpot_s=0.1, answer_tpot_s=0.05), 0.0, times_s, 11)
    slow_thinking = judge(Targets(tpot_s=0.01, answer_tpot_s=1.0), 0.0, times_s, 11)
    only_answer = judge(Targets(answer_tpot_s=1.0), 0.0, times_s, 11)
    assert slow_answer.tpot_s == only_answer.tpot_s == pytest.approx(0.1)
    assert slow_thinking.tpot_s == pytest.approx(0.02)


def test_an_answer_counts_from_the_last_token_of_thinking() -> None:
    judged = judge(Targets(answer_tpot_s=0.1), 0.0, [0.0, 1.0, 1.5], thinking_tokens=2)
    assert judged.tpot_s == pytest.approx(0.5)


def test_without_thinking_all_output_is_the_answer() -> None:
    judged = judge(Targets(tpot_s=0.01, answer_tpot_s=0.1), 0.0, [0.0, 0.09, 0.1, 0.12], 0)
    assert judged.met
    assert judged.tpot_s == pytest.approx(0.04)


def test_a_target_is_missed_only_by_more_than_rounding_errors() -> None:
    assert not exceeds(1.0 + TOLERANCE_S, 1.0)
    assert exceeds(1.0 + 2 * TOLERANCE_S, 1.0)
    assert not exceeds(None, 1.0) and not exceeds(1.0, None)


def test_a_whole_answer_of_thinking_is_judged_by_the_thinking_tpot() -> None:
    judged = judge(Targets(tpot_s=0.01, answer_tpot_s=0.1), 0.0, steady(0.0, 0.05, 4), thinking_tokens=4)
    assert judged.broken == ("tpot",)
