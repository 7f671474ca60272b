"""The replicas of a fleet as a StatefulSet has them: by ordinal, and the highest go first.

One that is taken away drains: it takes nobody any more, finishes what it has, and has gone then. One that was
still starting has gone at once. An ordinal comes back only when its predecessor has gone, and is new then: it
has learned nothing.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock_core.autoscaling.demand import ReplicaDemand, ReplicaState
from penstock_core.forecast.snapshot import snapshot

from penstock_simulator.simulation.replica import Replica


class Start(NamedTuple):
    """A replica that will be ready then, unless it is taken away before."""

    ordinal: int
    ready_s: float


class ReplicaSet:
    """All of them.

    ready: those that take work, by name.
    """

    def __init__(self, replicas: int, make: Callable[[int], Replica]) -> None:
        self._make = make
        self.desired = replicas
        made = [make(ordinal) for ordinal in range(replicas)]
        self.ready = {replica.name: replica for replica in made}
        self._ordinals = {replica.name: ordinal for ordinal, replica in enumerate(made)}
        self._starting: dict[int, Start] = {}
        self._draining: dict[str, Replica] = {}

    @property
    def gpus(self) -> int:
        """That they hold."""
        return len(self.ready) + len(self._starting) + len(self._draining)

    def starts(self, ready_s: float) -> list[Start]:
        """Those that begin to start now, to be ready then."""
        there = {*self._ordinals.values(), *self._starting}
        new = [Start(ordinal, ready_s) for ordinal in range(self.desired) if ordinal not in there]
        self._starting.update((start.ordinal, start) for start in new)
        return new

    def drains(self) -> list[Replica]:
        """Those that are taken away now and have to drain. What was starting has gone."""
        self._starting = {at: start for at, start in self._starting.items() if at < self.desired}
        leaving = [self.ready.pop(name) for name in list(self.ready) if self._ordinals[name] >= self.desired]
        for replica in leaving:
            replica.draining = True
            self._draining[replica.name] = replica
        return leaving

    def started(self, start: Start) -> Replica | None:
        """A start has come to its end. None where it was taken away before."""
        if self._starting.get(start.ordinal) != start:
            return None
        del self._starting[start.ordinal]
        replica = self._make(start.ordinal)
        self.ready[replica.name] = replica
        self._ordinals[replica.name] = start.ordinal
        return replica

    def gone(self, replica: Replica) -> bool:
        """One that drained has finished; whether it was still here."""
        if self._draining.get(replica.name) is not replica:
            return False
        del self._draining[replica.name]
        del self._ordinals[replica.name]
        return True

    def demands(self, now_s: float) -> Iterator[ReplicaDemand]:
        """Each as autoscaling sees it."""
        for start in self._starting.values():
            yield ReplicaDemand(f"r{start.ordinal}", ReplicaState.STARTING)
        for replicas, state in ((self.ready, ReplicaState.READY), (self._draining, ReplicaState.DRAINING)):
            for name, replica in replicas.items():
                yield ReplicaDemand(name, state, snapshot(replica.outlook(now_s)))
