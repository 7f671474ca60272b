"""Autoscaling of a simulated fleet.

An autoscaler decides once a period, from the demand that routers count and the snapshots of replicas, as the
operator does. A new replica is ready only after its model is loaded, and a removed one first finishes its
requests. Both hold a GPU meanwhile.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from penstock_core.autoscaling.demand import DemandObservation


class ReplicaCounts(NamedTuple):
    """The numbers of replicas from `at_s` on.

    desired: as decided. ready: replicas that take requests. gpus: ready, starting and draining replicas.
    """

    at_s: float
    desired: int
    ready: int
    gpus: int


def _ignore(counts: ReplicaCounts) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class FleetAutoscaler:
    """An autoscaler and its timing.

    decide: returns the desired number of replicas from the demand and the time; may be stateful.
    period_s: seconds between decisions. The first is at 0.
    startup_s: seconds from a decision to a ready replica: scheduling it and loading its model.
    on_change: called whenever the numbers of replicas have changed.
    """

    decide: Callable[[DemandObservation, float], int]
    period_s: float = 15.0
    startup_s: float = 90.0
    on_change: Callable[[ReplicaCounts], None] = _ignore


def gpu_hours(timeline: Iterable[ReplicaCounts], until_s: float) -> float:
    """Return the GPU hours from the first counts until `until_s`."""
    ends = [*(counts for counts in timeline if counts.at_s < until_s), ReplicaCounts(until_s, 0, 0, 0)]
    return sum(counts.gpus * (after.at_s - counts.at_s) for counts, after in pairwise(ends)) / 3600


def scale_events(timeline: Iterable[ReplicaCounts]) -> int:
    """Return how often the desired number changed."""
    return sum(before.desired != after.desired for before, after in pairwise(timeline))
