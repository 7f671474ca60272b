"""Evaluation in the end-to-end test on real vLLM: which answers are compared, how verdicts are counted."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from pool_on_vllm.__main__ import STEPS
from pool_on_vllm.runner import title_of
from pool_on_vllm.steps.benchmark import disagreements
from pool_on_vllm.steps.greedy import MARGIN, without_near_ties
from pool_on_vllm.steps.overload import required_attainment, verdict
from pool_on_vllm.steps.startup import p99_gap_s
from unmodified.load import MeasuredOutcome


def choice(*gaps: float) -> dict[str, Any]:
    """Return an answer in which the second best token is less likely by these amounts."""
    return {"logprobs": {"top_logprobs": [{"a": -1.0, "b": -1.0 - gap} for gap in gaps]}}


def test_each_step_has_a_title_of_one_line() -> None:
    titles = {step: title_of(step) for step in STEPS}
    assert all(title.strip() and "\n" not in title for title in titles.values())
    assert len(set(titles.values())) == len(titles) > 5


def test_an_answer_with_a_near_tie_is_not_compared() -> None:
    assert without_near_ties(choice(2 * MARGIN, 1.0))
    assert not without_near_ties(choice(1.0, MARGIN / 2, 1.0))


@pytest.mark.parametrize(
    ("status", "headers", "counted"),
    [
        (200, {"x-penstock-verdict": "admitted"}, "admitted"),
        (200, {"x-penstock-verdict": "best-effort"}, "best-effort"),
        (429, {}, "rejected"),
        (0, {}, "none"),
    ],
)
def test_verdicts_have_the_names_of_the_routers_counters(
    status: int, headers: dict[str, str], counted: str
) -> None:
    assert verdict(MeasuredOutcome("chat", status, headers)) == counted


@pytest.mark.parametrize(("off", "bound"), [(0.0, 0.9), (0.05, 0.9), (0.1, 0.8), (0.9, 0.7)])
def test_a_larger_model_error_lowers_the_required_attainment(off: float, bound: float) -> None:
    assert required_attainment(off) == pytest.approx(bound)


def test_the_p99_gap_includes_the_longest() -> None:
    assert p99_gap_s([0.0, 0.01, 0.02, 1.02]) > 0.9
    with pytest.raises(AssertionError, match="only 1 gaps"):
        p99_gap_s([0.0, 1.0])


def test_means_and_p99_may_differ_more_than_medians() -> None:
    stalled = {"mean ttft": (108.0, 100.0), "median ttft": (104.0, 100.0), "p99 ttft": (124.0, 100.0)}
    assert disagreements(stalled) == []
    assert disagreements(stalled | {"median ttft": (106.0, 100.0)}) == ["median ttft off by 6.0%"]
    assert disagreements({"mean tpot": (80.0, 100.0)}) == ["mean tpot off by 20.0%"]
