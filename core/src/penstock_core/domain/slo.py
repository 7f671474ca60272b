"""What an application was promised, and when each token is due.

A service-level objective (SLO) has up to three targets. Time to first token (TTFT) runs from the moment
the router had read the request until its first token. Time per output token (TPOT) is the pace after it.
End to end (e2e) covers the whole answer. A TTFT target may be a duration or a slowdown: a multiple of this
prompt's prefill time on an idle replica, which only a time model can turn into a duration.

Planning sees an SLO as deadlines of tokens [SLOs-Serve, §3.2.2]: the first token is due at arrival + TTFT,
token k after it at (the first token's time) + k·TPOT. The pace is judged from the first token that was really
sent, so an early first token does not lend its slack to later ones; tokens that run ahead of their pace do.

How the pace is judged decides where those deadlines are anchored: `mean` at the first token, `window` at the
start of every ten tokens, `max` at the token before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from penstock_core.domain.token_window import WINDOW_TOKENS, closed_tokens

NO_DEADLINE_S = float("inf")
"""The due time of a token nobody waits for."""


class Judge(StrEnum):
    """How the pace of a finished request is measured."""

    MEAN = "mean"  # (last token − first token) / (n − 1)
    WINDOW = "window"  # the slowest mean over consecutive windows of ten tokens
    MAX = "max"  # the longest single gap

    @property
    def window(self) -> int:
        """Tokens that are judged together; 0 for all of the answer (`token_window`)."""
        return _WINDOWS[self]


_WINDOWS = {Judge.MEAN: 0, Judge.WINDOW: WINDOW_TOKENS, Judge.MAX: 1}


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets as a tier states them.

    ttft_s: seconds to the first token, or None.
    ttft_slowdown: instead, a multiple of the prompt's prefill time on an idle replica.
    tpot_s: seconds per output token after the first, or None.
    e2e_s: seconds to the last token, or None.
    answer_tpot_s: the answer's pace, of models that think first; `tpot_s` is the thinking's.
    """

    ttft_s: float | None = None
    ttft_slowdown: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    judge: Judge = Judge.MEAN
    answer_tpot_s: float | None = None

    def targets(self, idle_prefill_s: float) -> "Targets":
        """This SLO for one prompt, whose prefill takes `idle_prefill_s` on an idle replica."""
        ttft_s = self.ttft_s if self.ttft_slowdown is None else self.ttft_slowdown * idle_prefill_s
        return Targets(ttft_s, self.tpot_s, self.e2e_s, self.judge, self.answer_tpot_s)


@dataclass(frozen=True, slots=True)
class Targets:
    """An SLO resolved for one request: durations only, counted from its arrival."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    judge: Judge = Judge.MEAN
    answer_tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class Tier:
    """An application's class of requests.

    value: what one admitted request is worth against another; the planner maximises the sum.
    best_effort: carries no SLO and takes what others leave.
    allow_request_targets: whether a request may bring its own TTFT and TPOT.
    """

    name: str
    slo: Slo = Slo()
    value: float = 1.0
    best_effort: bool = False
    allow_request_targets: bool = False


class Anchor(NamedTuple):
    """The token from which the pace is counted: its time, and how many tokens there were with it."""

    at_s: float
    tokens: int


NO_ANCHOR = Anchor(0.0, 0)
"""That of a request whose first token is still to come."""


def anchor_after(judge: Judge, anchor: Anchor | None, generated_tokens: int, now_s: float) -> Anchor:
    """The anchor once token number `generated_tokens` (1 for the first) has come out at `now_s`."""
    if anchor is None:
        return Anchor(now_s, generated_tokens)
    closed = closed_tokens(judge.window, generated_tokens - anchor.tokens)
    # tokens past the window's last came out with it: they are ahead
    return Anchor(now_s, anchor.tokens + closed) if closed else anchor


def anchor_after_each(
    judge: Judge, anchor: Anchor | None, generated_tokens: int, ends_s: Sequence[float]
) -> Anchor:
    """The anchor once a token has come out at each of these times, the last number `generated_tokens`."""
    before_tokens = generated_tokens - len(ends_s)
    if anchor is None:
        anchor = Anchor(ends_s[0], before_tokens + 1)
    tokens = anchor.tokens + closed_tokens(judge.window, generated_tokens - anchor.tokens)
    if tokens > max(before_tokens, anchor.tokens):
        return Anchor(ends_s[tokens - before_tokens - 1], tokens)
    return anchor


def first_token_due_s(arrival_s: float, targets: Targets) -> float:
    """When the first token is due. An e2e target alone gives the prefill half of its time."""
    if targets.ttft_s is not None:
        return arrival_s + targets.ttft_s
    if targets.e2e_s is not None:
        return arrival_s + targets.e2e_s / 2
    return NO_DEADLINE_S


def pace_s(targets: Targets, output_tokens: int) -> float | None:
    """Seconds per token to plan for: the tightest TPOT target, or what e2e leaves per predicted token."""
    paces_s = [pace for pace in (targets.tpot_s, targets.answer_tpot_s) if pace is not None]
    if targets.e2e_s is not None and output_tokens > 1:
        first_s = targets.ttft_s if targets.ttft_s is not None else targets.e2e_s / 2
        paces_s.append(max(targets.e2e_s - first_s, 0.0) / (output_tokens - 1))
    return min(paces_s) if paces_s else None


def next_token_due_s(anchor: Anchor, generated_tokens: int, pace_s: float | None) -> float:
    """When the token after `generated_tokens` is due, at one token per `pace_s` from the anchor."""
    if pace_s is None:
        return NO_DEADLINE_S
    return anchor.at_s + (generated_tokens + 1 - anchor.tokens) * pace_s


def judged_tpot_s(token_times_s: list[float], judge: Judge) -> float | None:
    """The pace of a finished request as its tier judges it; None with fewer than two tokens."""
    if len(token_times_s) < 2:
        return None
    last = len(token_times_s) - 1
    ends = [*range(0, last, judge.window or last), last]
    spans: list[float] = [
        (token_times_s[end] - token_times_s[start]) / (end - start) for start, end in pairwise(ends)
    ]
    return max(spans)
