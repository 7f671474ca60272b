"""Autoscaling by queue length, with the algorithm of Kubernetes' HorizontalPodAutoscaler: the usual practice.

The metric is vLLM's, per replica: `vllm:num_requests_waiting`, or its sum with `vllm:num_requests_running`.
The number of replicas is chosen to bring its average to a target, as in Kubernetes' controller
[kubernetes.io, Horizontal Pod Autoscaling, Algorithm details]: no change within a tolerance of 10 %; replicas
that are not ready count as idle for a scale-up and as on target for a scale-down, which dampens both; at most
double or four more at a time; a scale-down goes to the largest recommendation of the last five minutes.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from penstock_core.autoscaling.demand import DemandObservation, ReplicaState
from penstock_core.forecast.snapshot import Snapshot

TOLERANCE = 0.1
"""Kubernetes' `horizontal-pod-autoscaler-tolerance`."""
SCALE_UP_FACTOR, SCALE_UP_REPLICAS = 2, 4
"""Largest scale-up: to this multiple of the replicas, or by this many, whichever is more."""


def waiting(snapshot: Snapshot) -> float:
    """Return `vllm:num_requests_waiting`."""
    return snapshot.waiting


def in_flight(snapshot: Snapshot) -> float:
    """Return `vllm:num_requests_running` plus `vllm:num_requests_waiting`."""
    return snapshot.running + snapshot.waiting


@dataclass(frozen=True, slots=True)
class QueueTarget:
    """The autoscaling target.

    metric: metric of one replica. average: target of its mean over replicas. averaged_s: seconds over which
        the metric is averaged.
    """

    metric: Callable[[Snapshot], float]
    average: float
    min_replicas: int
    max_replicas: int
    averaged_s: float = 0.0
    scale_down_window_s: float = 300.0


class TimedFigure(NamedTuple):
    """A figure with its time."""

    at_s: float
    figure: float


class QueueLengthAutoscaler:
    """The autoscaler of one pool."""

    def __init__(self, target: QueueTarget) -> None:
        self._target = target
        self._totals: deque[TimedFigure] = deque()
        self._recommended: deque[TimedFigure] = deque()

    def decide(self, demand: DemandObservation, now_s: float) -> int:
        """Return the desired number of replicas."""
        target = self._target
        recommended = min(max(self._recommend(demand, now_s), target.min_replicas), target.max_replicas)
        before = self._recommended or deque([TimedFigure(now_s, demand.desired)])
        self._recommended = _since(before, now_s - target.scale_down_window_s)
        self._recommended.append(TimedFigure(now_s, recommended))
        most = max(demand.desired * SCALE_UP_FACTOR, demand.desired + SCALE_UP_REPLICAS)
        stabilized = int(max(timed.figure for timed in self._recommended))
        return min(max(recommended, min(stabilized, demand.desired)), most)

    def _recommend(self, demand: DemandObservation, now_s: float) -> int:
        target, ready = self._target, demand.ready()
        starting = sum(replica.state is ReplicaState.STARTING for replica in demand.replicas)
        if not ready:
            return demand.desired
        self._totals = _since(self._totals, now_s - target.averaged_s)
        self._totals.append(TimedFigure(now_s, sum(target.metric(replica.snapshot) for replica in ready)))
        total = sum(timed.figure for timed in self._totals) / len(self._totals)
        more = total / len(ready) > target.average
        assumed = 0.0 if more else starting * target.average
        ratio = (total + assumed) / (len(ready) + starting) / target.average
        if abs(ratio - 1.0) <= TOLERANCE or (ratio > 1.0) != more:
            return demand.desired
        return ceil(ratio * (len(ready) + starting))


def _since(figures: "deque[TimedFigure]", begin_s: float) -> "deque[TimedFigure]":
    return deque(timed for timed in figures if timed.at_s > begin_s)
