"""The discrete-event simulation of a fleet.

Time jumps from moment to moment: an iteration ends, a request arrives at its router or at a replica, an
engine that stood still is asked again. What happens in one moment happens in this order, until nothing is
left to happen in it: iterations end, requests travel and gather, replicas decide about those that have
gathered together. Then every engine that stands still and has work begins its next iteration.

Nothing but the seed is random, no clock is read, and only what is under way is held: arrivals are taken from
their iterator when their time has come, and an outcome is given as soon as its request has ended. Whoever
has seen enough stops asking.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from penstock_core.policy import Knobs, Policy
from penstock_core.routing import Try
from penstock_core.verdict import Admitted, Rejected
from penstock_core.verdict import Verdict as Answer

from penstock_simulator import policies
from penstock_simulator.arrival import Arrival
from penstock_simulator.simulation.agenda import Agenda
from penstock_simulator.simulation.fleet import Fleet
from penstock_simulator.simulation.journey import Journey, request_of
from penstock_simulator.simulation.outcome import Outcome, Verdict
from penstock_simulator.simulation.replica import Replica
from penstock_simulator.simulation.routers import Routers
from penstock_simulator.simulation.sessions import Sessions

REPLAN_S = 0.01
"""An engine whose policy wanted nothing is asked again after so long."""

MOST_REPLICAS = 64
"""Seeds of replicas are told apart up to here."""

BuildPolicy = Callable[[str, Knobs], Policy[Any]]


def simulate(
    fleet: Fleet, arrivals: Iterable[Arrival], seed: int, build: BuildPolicy = policies.build
) -> Iterator[Outcome]:
    """Serve arrivals, given in order of time, and tell what became of each, as they end.

    build: makes each replica's policy; who wants to measure or replace it gives another one.

    Raises UnknownPolicy, VllmMissing, UnknownTimeModel, and whatever a policy that has a fault does.
    """
    return _Simulation(fleet, arrivals, seed, build).outcomes()


class _Reaches(NamedTuple):
    """A request arrives at the replica that it was sent to."""

    journey: Journey
    replica: Replica


class _Ends(NamedTuple):
    """A replica's iteration ends."""

    replica: Replica


class _Replans(NamedTuple):
    """A replica that stands still is asked again."""

    replica: Replica


_Event = _Reaches | _Ends | _Replans


class _Simulation:
    """One run."""

    def __init__(self, fleet: Fleet, arrivals: Iterable[Arrival], seed: int, build: BuildPolicy) -> None:
        if not 1 <= fleet.replicas <= MOST_REPLICAS:
            raise ValueError(f"{fleet.replicas} replicas; from 1 to {MOST_REPLICAS} can be simulated")
        names = [f"r{i}" for i in range(fleet.replicas)]
        self._fleet = fleet
        self._replicas = {
            name: Replica(name, fleet, build(fleet.policy, fleet.knobs), seed * MOST_REPLICAS + i)
            for i, name in enumerate(names)
        }
        self._routers, self._sessions = Routers(fleet, names), Sessions()
        self._agenda: Agenda[_Event] = Agenda()
        self._coming = iter(arrivals)
        self._next = next(self._coming, None)
        self._awake: dict[str, Replica] = {}
        self._gathering: dict[str, Replica] = {}
        self._ended: list[Outcome] = []

    def outcomes(self) -> Iterator[Outcome]:
        """Everything, moment by moment."""
        while (now_s := self._next_moment_s()) is not None:
            while self._something_happens(now_s):
                self._decide(now_s)
            self._begin(now_s)
            yield from self._ended
            self._ended.clear()

    def _next_moment_s(self) -> float | None:
        planned_s = self._agenda.next_s
        if self._next is None:
            return planned_s
        return self._next.arrival_s if planned_s is None else min(planned_s, self._next.arrival_s)

    def _something_happens(self, now_s: float) -> bool:
        """Let everything happen that is due; whether there was anything."""
        happened = False
        while (event := self._agenda.due(now_s)) is not None:
            self._happens(event, now_s)
            happened = True
        while self._next is not None and self._next.arrival_s <= now_s:
            arrival, self._next = self._next, next(self._coming, None)
            self._arrives(arrival, now_s)
            happened = True
        return happened

    def _happens(self, event: _Event, now_s: float) -> None:
        replica = event.replica
        if isinstance(event, _Reaches):
            replica.newcomers.append(event.journey)
            self._gathering[replica.name] = replica
            return
        replica.replanning &= not isinstance(event, _Replans)
        if isinstance(event, _Ends):
            for journey in replica.finish(now_s):
                self._end(journey.served(), now_s)
        self._awake[replica.name] = replica

    def _arrives(self, arrival: Arrival, now_s: float) -> None:
        if self._sessions.arrive(arrival):
            self._send(arrival, now_s)

    def _send(self, arrival: Arrival, now_s: float) -> None:
        """A request sets out from its router."""
        fleet = self._fleet
        tier = fleet.tiers[arrival.tier or fleet.default_tier]
        request = request_of(arrival, tier, fleet, now_s)
        best_effort = tier.best_effort or self._sessions.best_effort(arrival)
        journey = Journey(arrival, request, best_effort, *self._routers.receive(request, best_effort))
        if arrival.prompt_tokens + arrival.output_tokens > fleet.longest_tokens:
            self._end(journey.turned_away(Verdict.FAILED), now_s)
        else:
            self._travel(journey, now_s)

    def _travel(self, journey: Journey, now_s: float) -> None:
        move = self._routers.send(journey, now_s)
        if isinstance(move, Try):
            reaches = _Reaches(journey, self._replicas[move.replica])
            self._agenda.plan(now_s + self._fleet.hop_latency_s, reaches)
        else:
            self._end(journey.turned_away(Verdict.REJECTED), now_s)

    def _decide(self, now_s: float) -> None:
        """Every replica decides about those who have gathered there."""
        gathering, self._gathering = self._gathering, {}
        for replica in gathering.values():
            for journey, answer in replica.admit(now_s):
                self._answered(journey, answer, now_s)
            self._awake[replica.name] = replica

    def _answered(self, journey: Journey, answer: Answer, now_s: float) -> None:
        assert journey.tried is not None, "it is answered where it was tried"
        self._routers.answered(journey, journey.tried, answer, now_s)
        if isinstance(answer, Rejected):
            self._travel(journey, now_s)
        else:
            journey.verdict = Verdict.ADMITTED if isinstance(answer, Admitted) else Verdict.BEST_EFFORT

    def _begin(self, now_s: float) -> None:
        """Engines that stand still and have work go on, and replicas tell what they do now."""
        awake, self._awake = self._awake, {}
        for replica in awake.values():
            if not replica.busy and replica.journeys:
                self._begin_one(replica, now_s)
            self._routers.publish(replica.name, replica.outlook(now_s))

    def _begin_one(self, replica: Replica, now_s: float) -> None:
        end_s = replica.begin(now_s)
        if end_s is not None:
            self._agenda.plan(end_s, _Ends(replica))
        elif not replica.replanning:
            replica.replanning = True
            self._agenda.plan(now_s + REPLAN_S, _Replans(replica))

    def _end(self, outcome: Outcome, now_s: float) -> None:
        self._ended.append(outcome)
        following = self._sessions.ended(outcome, now_s)
        if following is not None:
            self._send(following, now_s)
