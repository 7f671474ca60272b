"""Measures whether a finished request met every target, from the times of its tokens.

TTFT and end-to-end latency are measured directly; TPOT as the tier says (`slo.Judge`). If a model thinks
first and the tier has a separate TPOT target for the answer, it is measured in two stages [SLOs-Serve, App.
C]: tokens of thinking against `tpot_s`, tokens of the answer, counted from the last token of thinking,
against `answer_tpot_s`. The request's TPOT is then that of the stage with the worse ratio to its target.

A target without a measurement is met: an answer of one token has no TPOT.
"""

from math import inf
from typing import NamedTuple

from penstock_core.domain.slo import Targets, judged_tpot_s

TOLERANCE_S = 1e-6
"""Tolerance for rounding in sums of floating-point numbers."""


class Judgement(NamedTuple):
    """Measurements of a finished request.

    tpot_s: TPOT of the worse stage, as the tier judges it; None with fewer than two tokens.
    broken: the targets that were missed: "ttft", "tpot", "e2e".
    """

    ttft_s: float
    tpot_s: float | None
    e2e_s: float
    broken: tuple[str, ...]

    @property
    def met(self) -> bool:
        """Return whether every target was met."""
        return not self.broken


def judge(targets: Targets, arrival_s: float, token_times_s: list[float], thinking_tokens: int) -> Judgement:
    """Judge a request by its tokens (at least one), the first `thinking_tokens` of which were thinking."""
    ttft_s, e2e_s = token_times_s[0] - arrival_s, token_times_s[-1] - arrival_s
    tpot_s, target_tpot_s = worse_stage(_stages(targets, token_times_s, thinking_tokens))
    measured = (
        ("ttft", ttft_s, targets.ttft_s),
        ("tpot", tpot_s, target_tpot_s),
        ("e2e", e2e_s, targets.e2e_s),
    )
    return Judgement(ttft_s, tpot_s, e2e_s, tuple(name for name, *pair in measured if exceeds(*pair)))


def exceeds(measured_s: float | None, target_s: float | None) -> bool:
    """Return whether a measured time exceeds its target, if there are both."""
    return measured_s is not None and target_s is not None and measured_s > target_s + TOLERANCE_S


class Stage(NamedTuple):
    """A part of an answer: its measured TPOT, and its target."""

    tpot_s: float | None
    target_s: float | None


def worse_stage(stages: list[Stage]) -> Stage:
    """Return the stage with the highest ratio of TPOT to target; a stage without a target ranks last."""
    return max(stages, key=_share)


def _stages(targets: Targets, token_times_s: list[float], thinking_tokens: int) -> list[Stage]:
    if targets.answer_tpot_s is None:
        return [Stage(judged_tpot_s(token_times_s, targets.judge), targets.tpot_s)]
    thinking_s = token_times_s[:thinking_tokens]
    answer_s = token_times_s[max(thinking_tokens - 1, 0) :]
    return [
        Stage(judged_tpot_s(answer_s, targets.judge), targets.answer_tpot_s),
        Stage(judged_tpot_s(thinking_s, targets.judge), targets.tpot_s),
    ]


def _share(stage: Stage) -> float:
    if stage.tpot_s is None:
        return -inf
    return 0.0 if stage.target_s is None else stage.tpot_s / stage.target_s
