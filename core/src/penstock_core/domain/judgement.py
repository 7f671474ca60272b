"""Whether a finished request kept every target it carries, told from when its tokens came out.

Time to first token and end to end read as they sound. The pace is judged as the tier says (`slo.Judge`).
Where a model thinks first and the tier gives its answer a pace of its own, it is judged in two stages
[SLOs-Serve, App. C]: the tokens of thinking against `tpot_s`, those of the answer, counted from the last
token of thinking, against `answer_tpot_s`. The pace that stands for the request is then that of the stage
which fares worse by its own target.

A target without a measure is kept: an answer of one token has no pace.
"""

from math import inf
from typing import NamedTuple

from penstock_core.domain.slo import Targets, judged_tpot_s

TOLERANCE_S = 1e-6
"""What sums of floating point may be off by."""


class Judgement(NamedTuple):
    """A finished request, measured.

    tpot_s: as its tier judges it, of its worse stage; None with fewer than two tokens.
    broken: the targets that were not kept: "ttft", "tpot", "e2e".
    """

    ttft_s: float
    tpot_s: float | None
    e2e_s: float
    broken: tuple[str, ...]

    @property
    def met(self) -> bool:
        """Whether every target was kept."""
        return not self.broken


def judge(
    targets: Targets, arrival_s: float, token_times_s: list[float], thinking_tokens: int = 0
) -> Judgement:
    """Judge a request by all its tokens, of which the first `thinking_tokens` were thinking; at least one."""
    ttft_s, e2e_s = token_times_s[0] - arrival_s, token_times_s[-1] - arrival_s
    tpot_s, pace_s = worse_stage(_stages(targets, token_times_s, thinking_tokens))
    measured = (("ttft", ttft_s, targets.ttft_s), ("tpot", tpot_s, pace_s), ("e2e", e2e_s, targets.e2e_s))
    return Judgement(ttft_s, tpot_s, e2e_s, tuple(name for name, *pair in measured if exceeds(*pair)))


def exceeds(seen_s: float | None, target_s: float | None) -> bool:
    """Whether a measured time breaks its target, where there are both."""
    return seen_s is not None and target_s is not None and seen_s > target_s + TOLERANCE_S


class Stage(NamedTuple):
    """A part of an answer: its judged pace, and the one it was promised."""

    tpot_s: float | None
    target_s: float | None


def worse_stage(stages: list[Stage]) -> Stage:
    """The one that took more of what it was promised; a stage without a promise counts least."""
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
