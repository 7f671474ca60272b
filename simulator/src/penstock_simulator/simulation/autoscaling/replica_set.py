"""The replicas of a fleet as in a StatefulSet: by ordinal, the highest removed first.

A removed replica drains: it takes no new requests, finishes those that it has, and is then gone. One that was
starting is gone immediately. An ordinal is used again only after its replica has gone; the new replica has no
learned state.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock_core.autoscaling.demand import ReplicaDemand, ReplicaState
from penstock_core.forecast.snapshot import snapshot

from penstock_simulator.simulation.replica import SimulatedReplica


class ReplicaStart(NamedTuple):
    """A replica that becomes ready at `ready_s`, unless it is removed before."""

    ordinal: int
    ready_s: float


class FleetReplicas:
    """All replicas of a fleet.

    desired: their desired number.
    ready: replicas that take requests, by name.
    """

    def __init__(self, replicas: int, make: Callable[[int], SimulatedReplica]) -> None:
        self._make = make
        self.desired = replicas
        made = [make(ordinal) for ordinal in range(replicas)]
        self.ready = {replica.name: replica for replica in made}
        self._ordinals = {replica.name: ordinal for ordinal, replica in enumerate(made)}
        self._starting: dict[int, ReplicaStart] = {}
        self._draining: dict[str, SimulatedReplica] = {}

    @property
    def gpus(self) -> int:
        """Number of GPUs that the replicas hold, starting and draining ones included."""
        return len(self.ready) + len(self._starting) + len(self._draining)

    def start_missing(self, ready_s: float) -> list[ReplicaStart]:
        """Start the replicas that are missing, to be ready at `ready_s`, and return their starts."""
        existing = {*self._ordinals.values(), *self._starting}
        new = [ReplicaStart(ordinal, ready_s) for ordinal in range(self.desired) if ordinal not in existing]
        self._starting.update((start.ordinal, start) for start in new)
        return new

    def drain_surplus(self) -> list[SimulatedReplica]:
        """Remove surplus replicas. Returns those that drain; starting ones are gone immediately."""
        self._starting = {at: start for at, start in self._starting.items() if at < self.desired}
        leaving = [self.ready.pop(name) for name in list(self.ready) if self._ordinals[name] >= self.desired]
        for replica in leaving:
            replica.draining = True
            self._draining[replica.name] = replica
        return leaving

    def finish_start(self, start: ReplicaStart) -> SimulatedReplica | None:
        """Return the replica that has become ready; None if it was removed before."""
        if self._starting.get(start.ordinal) != start:
            return None
        del self._starting[start.ordinal]
        replica = self._make(start.ordinal)
        self.ready[replica.name] = replica
        self._ordinals[replica.name] = start.ordinal
        return replica

    def drained(self, replica: SimulatedReplica) -> bool:
        """Remove a replica that has finished draining. Returns whether it was draining."""
        if self._draining.get(replica.name) is not replica:
            return False
        del self._draining[replica.name]
        del self._ordinals[replica.name]
        return True

    def demands(self, now_s: float) -> Iterator[ReplicaDemand]:
        """Yield each replica's state as autoscaling reads it."""
        for start in self._starting.values():
            yield ReplicaDemand(f"r{start.ordinal}", ReplicaState.STARTING)
        for replicas, state in ((self.ready, ReplicaState.READY), (self._draining, ReplicaState.DRAINING)):
            for name, replica in replicas.items():
                yield ReplicaDemand(name, state, snapshot(replica.planning_view(now_s)))
