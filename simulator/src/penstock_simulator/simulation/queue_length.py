"""An autoscaler on queue lengths, as Kubernetes' HorizontalPodAutoscaler is one: what the field does today.

The metric is vLLM's own, by replica: `vllm:num_requests_waiting`, or that and `vllm:num_requests_running`. As
many replicas are wanted as bring its average to a target. The rest is the algorithm of Kubernetes' controller
[kubernetes.io, Horizontal Pod Autoscaling, Algorithm details]: nothing moves within a tolerance of a tenth;
replicas that are not ready yet count as idle where more are wanted and as on target where fewer are, which
dampens both; at most double or four more at a time; the largest recommendation of the last five minutes
stands where fewer are wanted.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from penstock_core.autoscaling.demand import Demand, ReplicaState
from penstock_core.forecast.snapshot import Snapshot

TOLERANCE = 0.1
MOST_TIMES, MOST_MORE = 2, 4


def waiting(said: Snapshot) -> float:
    """`vllm:num_requests_waiting`."""
    return said.waiting


def in_flight(said: Snapshot) -> float:
    """`vllm:num_requests_running` and `vllm:num_requests_waiting`."""
    return said.running + said.waiting


@dataclass(frozen=True, slots=True)
class Target:
    """What is held to.

    metric: of one replica. average: to be had over replicas. averaged_s: the metric is the mean of so long.
    """

    metric: Callable[[Snapshot], float]
    average: float
    min_replicas: int
    max_replicas: int
    averaged_s: float = 0.0
    scale_down_window_s: float = 300.0


class Noted(NamedTuple):
    """A figure at a moment."""

    at_s: float
    figure: float


class QueueLength:
    """One pool's."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._totals: deque[Noted] = deque()
        self._asked: deque[Noted] = deque()

    def decide(self, demand: Demand, now_s: float) -> int:
        """How many replicas there are to be."""
        target = self._target
        asked = min(max(self._wanted(demand, now_s), target.min_replicas), target.max_replicas)
        before = self._asked or deque([Noted(now_s, demand.desired)])
        self._asked = _since(before, now_s - target.scale_down_window_s)
        self._asked.append(Noted(now_s, asked))
        most = max(demand.desired * MOST_TIMES, demand.desired + MOST_MORE)
        steady = int(max(noted.figure for noted in self._asked))
        return min(max(asked, min(steady, demand.desired)), most)

    def _wanted(self, demand: Demand, now_s: float) -> int:
        target, ready = self._target, demand.ready()
        starting = sum(replica.state is ReplicaState.STARTING for replica in demand.replicas)
        if not ready:
            return demand.desired
        self._totals = _since(self._totals, now_s - target.averaged_s)
        self._totals.append(Noted(now_s, sum(target.metric(replica.snapshot) for replica in ready)))
        total = sum(noted.figure for noted in self._totals) / len(self._totals)
        more = total / len(ready) > target.average
        assumed = 0.0 if more else starting * target.average
        ratio = (total + assumed) / (len(ready) + starting) / target.average
        if abs(ratio - 1.0) <= TOLERANCE or (ratio > 1.0) != more:
            return demand.desired
        return ceil(ratio * (len(ready) + starting))


def _since(seen: "deque[Noted]", begins_s: float) -> "deque[Noted]":
    return deque(noted for noted in seen if noted.at_s > begins_s)
