"""What autoscaling sees: what was asked of the pool since the last look, and how its replicas stand.

Routers count, replicas tell. All counts are what was added since the observation before, over all routers,
so whoever gathers them takes care of routers that come, go and start anew. A request that no replica could
ever serve is no demand: more of the same replicas would not help it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock_core.forecast.snapshot import Snapshot


class ReplicaState(StrEnum):
    """Whether a replica takes work."""

    STARTING = "starting"  # not yet
    READY = "ready"
    DRAINING = "draining"  # no more: it finishes what it has


@dataclass(frozen=True, slots=True)
class TierDemand:
    """One tier's requests since the last observation.

    arrived: all. admitted: with a promise. best_effort: accepted without one. rejected: answered 429 or 503.
    hops: replicas that answered them for their capacity.
    judged, met: admitted requests that ended, and those of them that kept every target. (What had no promise
        is refused demand already, and may end long after.)
    promises: whether the tier has an SLO at all. One that has none is served in what is left, and its
        requests never ask for more replicas than one.
    """

    arrived: int = 0
    admitted: int = 0
    best_effort: int = 0
    rejected: int = 0
    hops: int = 0
    judged: int = 0
    met: int = 0
    promises: bool = True


@dataclass(frozen=True, slots=True)
class ReplicaDemand:
    """One replica now. snapshot: what it last said of itself; the default says nothing."""

    name: str
    state: ReplicaState
    snapshot: Snapshot = field(default_factory=Snapshot)


@dataclass(frozen=True, slots=True)
class Demand:
    """One observation.

    elapsed_s: since the one before, which the counts cover; 0 for the first.
    desired: replicas that the pool has been told to have, whether they are there yet or not.
    held: requests that wait at routers for any replica to come.
    """

    elapsed_s: float
    desired: int
    tiers: Mapping[str, TierDemand] = field(default_factory=dict)
    held: int = 0
    replicas: tuple[ReplicaDemand, ...] = ()

    def ready(self) -> tuple[ReplicaDemand, ...]:
        """Those that take work."""
        return tuple(replica for replica in self.replicas if replica.state is ReplicaState.READY)
