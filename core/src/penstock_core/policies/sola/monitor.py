"""What SOLA watches, and which of two problems it solves next [SOLA, §4.3, §4.4.1, Table 2].

Latency is watched as it runs, not as it ends. A request before its first token has a real-time TTFT: the time
since its arrival. A decode has a real-time TPOT: the time since its anchor over the tokens since then,
counting the one it waits for, so it is defined from the first moment and grows until that token is out. Both
over the request's own target are one number, the share of the time to its next due token that has passed:

    ratio = (now − since) / (due − since)        since: arrival, or the anchor of its pace

A tier that is judged by windows moves the anchor every ten tokens and one judged by gaps at every token; with
it the ratio starts again, as the judgement does. A preempted request has had its first token and counts with
its pace. Requests without a target are at 0, which no maximum ever picks.

The worst ratio of either kind says which is further from breaking, or further broken: that one is minimised,
the other is a constraint. Where both are broken the constraint is loosened to the requests that still keep
it: the worst ratio becomes the a %-level maximum, a being their share. Where nobody keeps it there is nothing
to protect, and the maximum stays. Compared are the worst ratios of the last iterations, since a prompt that
was served a moment ago says how long prompts wait, though nobody waits now.
"""

from collections.abc import Sequence
from enum import Enum, auto
from math import inf
from typing import NamedTuple

from penstock_core.domain.request import Job

LEAST_S = 1e-9
"""A target of nothing at all is as good as this."""


class Problem(Enum):
    """What the next iteration minimises, under the other's target."""

    TTFT = auto()
    TPOT = auto()


class Pressure(NamedTuple):
    """How near to breaking, or how far broken, either latency is.

    ttft, tpot: worst ratio to its target, of those that count.
    loosened: both were broken, so only requests that still keep a target constrain it.
    """

    ttft: float
    tpot: float
    loosened: bool = False


def since_s(job: Job) -> float:
    """Where the time to its next token is counted from."""
    return job.request.arrival_s if job.anchor is None else job.anchor.at_s


def latency_ratios(jobs: Sequence[Job], now_s: float) -> list[float]:
    """Real-time TTFT or TPOT of each over its target; 0 without one."""
    spans = [(start_s := since_s(job), job.due_s - start_s) for job in jobs]
    return [
        0.0 if target_s == inf else (now_s - start_s) / (target_s if target_s > LEAST_S else LEAST_S)
        for start_s, target_s in spans
    ]


def pressure(ttft_ratios: Sequence[float], tpot_ratios: Sequence[float]) -> Pressure:
    """The system's state, from its requests' [p_TTFT and p_TPOT; §4.3]."""
    ttft, tpot = max(ttft_ratios, default=0.0), max(tpot_ratios, default=0.0)
    if ttft > 1 and tpot > 1:
        return Pressure(level(ttft_ratios), level(tpot_ratios), loosened=True)
    return Pressure(ttft, tpot)


def level(ratios: Sequence[float]) -> float:
    """The a %-level maximum, where a % keep their target; the maximum where none does."""
    return max([ratio for ratio in ratios if ratio <= 1], default=max(ratios))


def problem(window: Sequence[Pressure]) -> Problem:
    """Whichever latency was at its worst over the window further from fulfilled [Table 2]; TTFT if even."""
    ttft, tpot = max([seen.ttft for seen in window]), max([seen.tpot for seen in window])
    return Problem.TTFT if ttft >= tpot else Problem.TPOT
