"""Autoscaling's input: requests since the last observation, and the state of each replica.

Routers count requests; replicas report their load. All counts are increments since the previous observation,
summed over routers, so the caller handles routers that start, stop and restart. A request that no replica
could ever serve is not demand, because more replicas would not help it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock_core.forecast.snapshot import Snapshot


class ReplicaState(StrEnum):
    """Whether a replica takes requests."""

    STARTING = "starting"  # not yet ready
    READY = "ready"
    DRAINING = "draining"  # takes no new requests and finishes those that it has


@dataclass(frozen=True, slots=True)
class TierDemand:
    """One tier's requests since the last observation.

    arrived: all requests. admitted: with an SLO. best_effort: accepted without one. rejected: answered 429 or
        503.
    hops: rejections by replicas for lack of capacity.
    judged, met: admitted requests that ended, and those that met every target. (Requests that were not
        admitted already count as rejected demand, and may end much later.)
    has_slo: whether the tier has an SLO. A tier without one is served in the remaining capacity and never
        causes more than one replica.
    """

    arrived: int = 0
    admitted: int = 0
    best_effort: int = 0
    rejected: int = 0
    hops: int = 0
    judged: int = 0
    met: int = 0
    has_slo: bool = True


@dataclass(frozen=True, slots=True)
class ReplicaDemand:
    """One replica now. snapshot: its last snapshot; the default is that of a replica without one."""

    name: str
    state: ReplicaState
    snapshot: Snapshot = field(default_factory=Snapshot)


@dataclass(frozen=True, slots=True)
class DemandObservation:
    """One observation.

    elapsed_s: time since the previous observation, which the counts cover; 0 for the first.
    desired: replicas that the pool should have, whether they run yet or not.
    held: requests that wait at routers for a replica.
    """

    elapsed_s: float
    desired: int
    tiers: Mapping[str, TierDemand] = field(default_factory=dict)
    held: int = 0
    replicas: tuple[ReplicaDemand, ...] = ()

    def ready(self) -> tuple[ReplicaDemand, ...]:
        """Return the replicas that take requests."""
        return tuple(replica for replica in self.replicas if replica.state is ReplicaState.READY)
