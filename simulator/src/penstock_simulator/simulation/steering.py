"""How the number of a fleet's replicas is moved while it serves.

At every period somebody decides, from what routers have counted and replicas say, as an operator would. What
it decides takes time: a new replica is ready only after its model is loaded, and one that is taken away
finishes what it has first. Both hold a GPU meanwhile.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from penstock_core.autoscaling.demand import Demand


class Stand(NamedTuple):
    """The replicas from a moment on.

    desired: as was decided. ready: take work. gpus: ready, starting and draining ones.
    """

    at_s: float
    desired: int
    ready: int
    gpus: int


def _unseen(stand: Stand) -> None:
    """Nobody looks."""


@dataclass(frozen=True, slots=True)
class Steering:
    """Who decides, and how often.

    decide: how many replicas there are to be, from an observation and the time. Keeps what it remembers.
    period_s: between two decisions. The first is made at 0.
    startup_s: from the decision to a replica that takes work: to place it, and to load its model.
    seen: is told whenever the replicas have changed.
    """

    decide: Callable[[Demand, float], int]
    period_s: float = 15.0
    startup_s: float = 90.0
    seen: Callable[[Stand], None] = _unseen


def gpu_hours(stands: Iterable[Stand], until_s: float) -> float:
    """What was paid for from the first stand until then."""
    ends = [*(stand for stand in stands if stand.at_s < until_s), Stand(until_s, 0, 0, 0)]
    return sum(stand.gpus * (after.at_s - stand.at_s) for stand, after in pairwise(ends)) / 3600


def scale_events(stands: Iterable[Stand]) -> int:
    """How often another number was decided."""
    return sum(before.desired != after.desired for before, after in pairwise(stands))
