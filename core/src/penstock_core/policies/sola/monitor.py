"""SOLA's monitor, which selects the problem to solve next [SOLA, §4.3, §4.4.1, Table 2].

Latency is observed in progress, not at the end. A request before its first token has a real-time TTFT: the
time since its arrival. A decode has a real-time TPOT: the time since its anchor over the tokens since then,
including the one that it waits for, so it is defined from the start and grows until that token is generated.
Both, over the request's own target, are one number, the elapsed share of the time to its next deadline:

    ratio = (now − since) / (due − since)        since: arrival, or the anchor of its TPOT

A tier that is judged by windows moves the anchor every ten tokens and one judged by gaps at every token; the
ratio then starts again, as the judgement does. A preempted request that has had its first token counts with
its TPOT. Requests without a target have ratio 0, which no maximum selects.

The latency with the worst ratio is minimised; the other is a constraint. If both exceed their targets, the
constraint is loosened to the requests that still meet theirs: the worst ratio becomes the a %-level maximum,
a being their share. If no request meets it, the maximum stays. The worst
ratios of the last iterations are compared, because a prompt that was served a moment ago shows how long
prompts wait, even if no prompt waits now.
"""

from collections.abc import Sequence
from enum import Enum, auto
from math import inf
from typing import NamedTuple

from penstock_core.domain.request import Job

LEAST_S = 1e-9
"""Smallest target, which replaces a target of zero."""


class LatencyGoal(Enum):
    """The latency that the next iteration minimises, under the other's target."""

    TTFT = auto()
    TPOT = auto()


class Pressure(NamedTuple):
    """Ratios of both latencies to their targets; above 1 the target is missed.

    ttft, tpot: worst ratio to its target, of those that count.
    loosened: both were missed, so only requests that still meet a target constrain it.
    """

    ttft: float
    tpot: float
    loosened: bool = False


def since_s(job: Job) -> float:
    """Return the time from which the next token's latency is counted."""
    return job.request.arrival_s if job.anchor is None else job.anchor.at_s


def latency_ratios(jobs: Sequence[Job], now_s: float) -> list[float]:
    """Return real-time TTFT or TPOT of each job over its target; 0 without one."""
    spans = [(start_s := since_s(job), job.due_s - start_s) for job in jobs]
    return [
        0.0 if target_s == inf else (now_s - start_s) / max(target_s, LEAST_S) for start_s, target_s in spans
    ]


def pressure(ttft_ratios: Sequence[float], tpot_ratios: Sequence[float]) -> Pressure:
    """Return the state of the system from its requests' ratios [p_TTFT and p_TPOT; §4.3]."""
    ttft, tpot = max(ttft_ratios, default=0.0), max(tpot_ratios, default=0.0)
    if ttft > 1 and tpot > 1:
        return Pressure(level(ttft_ratios), level(tpot_ratios), loosened=True)
    return Pressure(ttft, tpot)


def level(ratios: Sequence[float]) -> float:
    """Return the a %-level maximum, if a % meet their target; the maximum if none does."""
    return max([ratio for ratio in ratios if ratio <= 1], default=max(ratios))


def problem(window: Sequence[Pressure]) -> LatencyGoal:
    """Return the latency with the worse ratio over the window [Table 2]; TTFT if they are equal."""
    ttft, tpot = max([sample.ttft for sample in window]), max([sample.tpot for sample in window])
    return LatencyGoal.TTFT if ttft >= tpot else LatencyGoal.TPOT
