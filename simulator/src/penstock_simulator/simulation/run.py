"""The discrete-event simulation of a fleet.

Time jumps from moment to moment: an iteration ends, a request arrives at its router or at a replica, an
engine that stood still is asked again. What happens in one moment happens in this order, until nothing is
left to happen in it: iterations end, requests travel and gather, replicas decide about those that have
gathered together. Then every engine that stands still and has work begins its next iteration.

Where the number of replicas is steered, a moment may also bring a decision about it, or a replica that has
started. Without any replica, requests are held at the routers until one is ready.

Nothing but the seed is random, no clock is read, and only what is under way is held: arrivals are taken from
their iterator when their time has come, and an outcome is given as soon as its request has ended. Whoever
has seen enough stops asking.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from penstock_core.autoscaling.demand import Demand
from penstock_core.domain.policy import Knobs, Policy
from penstock_core.domain.verdict import Admitted, Rejected
from penstock_core.domain.verdict import Verdict as Answer
from penstock_core.routing.walk import Try

from penstock_simulator import policies
from penstock_simulator.arrival import Arrival
from penstock_simulator.simulation.agenda import Agenda
from penstock_simulator.simulation.demand_counts import DemandCounts
from penstock_simulator.simulation.fleet import Fleet
from penstock_simulator.simulation.journey import Journey, request_of
from penstock_simulator.simulation.outcome import Outcome, Verdict
from penstock_simulator.simulation.replica import Replica
from penstock_simulator.simulation.replica_set import ReplicaSet, Start
from penstock_simulator.simulation.routers import Routers
from penstock_simulator.simulation.sessions import Sessions
from penstock_simulator.simulation.steering import Stand, Steering

REPLAN_S = 0.01
"""An engine whose policy wanted nothing is asked again after so long."""

MOST_REPLICAS = 64
"""Seeds of replicas are told apart up to here."""

BuildPolicy = Callable[[str, Knobs], Policy[Any]]


def simulate(
    fleet: Fleet,
    arrivals: Iterable[Arrival],
    seed: int,
    build: BuildPolicy = policies.build,
    steering: Steering | None = None,
) -> Iterator[Outcome]:
    """Serve arrivals, given in order of time, and tell what became of each, as they end.

    build: makes each replica's policy; who wants to measure or replace it gives another one.
    steering: moves the number of replicas, which begins as the fleet has it; None: it stays.

    Raises UnknownPolicy, VllmMissing, UnknownTimeModel, and whatever a policy that has a fault does.
    """
    return _Simulation(fleet, arrivals, seed, build, steering).outcomes()


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


class _Looks(NamedTuple):
    """Somebody decides how many replicas there are to be."""


_Event = _Reaches | _Ends | _Replans | _Looks | Start


class _Simulation:
    """One run."""

    def __init__(
        self,
        fleet: Fleet,
        arrivals: Iterable[Arrival],
        seed: int,
        build: BuildPolicy,
        steering: Steering | None,
    ) -> None:
        fewest = 1 if steering is None else 0
        if not fewest <= fleet.replicas <= MOST_REPLICAS:
            raise ValueError(f"{fleet.replicas} replicas; from {fewest} to {MOST_REPLICAS} can be simulated")

        def make(ordinal: int) -> Replica:
            policy = build(fleet.policy, fleet.knobs)
            return Replica(f"r{ordinal}", fleet, policy, seed * MOST_REPLICAS + ordinal)

        self._fleet, self._steering = fleet, steering
        self._replicas = ReplicaSet(fleet.replicas, make)
        self._routers, self._sessions = Routers(fleet), Sessions()
        for replica in self._replicas.ready.values():
            self._routers.joined(replica.name, replica.outlook(0.0))
        self._agenda: Agenda[_Event] = Agenda()
        self._coming = iter(arrivals)
        self._next = next(self._coming, None)
        self._awake: dict[str, Replica] = {}
        self._gathering: dict[str, Replica] = {}
        self._ended: list[Outcome] = []
        self._counts, self._under_way = DemandCounts(fleet.tiers), 0
        self._held: deque[Journey] = deque()
        self._looked_s = 0.0
        self._stand: Stand | None = None
        if steering is not None:
            self._agenda.plan(0.0, _Looks())

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
        if isinstance(event, _Looks):
            self._look(now_s)
            return
        if isinstance(event, Start):
            self._start(event, now_s)
            return
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
        self._under_way += 1
        if arrival.prompt_tokens + arrival.output_tokens > fleet.longest_tokens:
            self._end(journey.turned_away(Verdict.FAILED), now_s)
        else:
            self._counts.arrived(journey)
            self._travel(journey, now_s)

    def _travel(self, journey: Journey, now_s: float) -> None:
        if not self._replicas.ready:
            self._held.append(journey)
            return
        move = self._routers.send(journey, now_s)
        if isinstance(move, Try):
            reaches = _Reaches(journey, self._replicas.ready[move.replica])
            self._agenda.plan(now_s + self._fleet.hop_latency_s, reaches)
        else:
            self._counts.rejected(journey)
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
        self._counts.answered(journey, answer)
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
            if not replica.draining:
                self._routers.publish(replica.name, replica.outlook_later(now_s), now_s)
            elif not replica.journeys and self._replicas.gone(replica):
                self._settle(now_s)

    def _begin_one(self, replica: Replica, now_s: float) -> None:
        end_s = replica.begin(now_s)
        if end_s is not None:
            self._agenda.plan(end_s, _Ends(replica))
        elif not replica.replanning:
            replica.replanning = True
            self._agenda.plan(now_s + REPLAN_S, _Replans(replica))

    def _end(self, outcome: Outcome, now_s: float) -> None:
        self._ended.append(outcome)
        self._under_way -= 1
        self._counts.ended(outcome)
        following = self._sessions.ended(outcome, now_s)
        if following is not None:
            self._send(following, now_s)

    def _look(self, now_s: float) -> None:
        """Decide how many replicas there are to be, for as long as there is anything to serve."""
        steering, replicas = self._steering, self._replicas
        assert steering is not None, "nobody looks where nobody steers"
        demand = Demand(
            elapsed_s=now_s - self._looked_s,
            desired=replicas.desired,
            tiers=self._counts.read(),
            held=len(self._held),
            replicas=tuple(replicas.demands(now_s)),
        )
        self._looked_s = now_s
        replicas.desired = steering.decide(demand, now_s)
        for replica in replicas.drains():
            self._routers.left(replica.name)
            self._awake[replica.name] = replica
        self._settle(now_s)
        if self._next is not None or self._under_way:
            self._agenda.plan(now_s + steering.period_s, _Looks())

    def _settle(self, now_s: float) -> None:
        """Start what is to be there and is not, and tell how things stand."""
        steering, replicas = self._steering, self._replicas
        assert steering is not None, "replicas come and go where somebody steers"
        for start in replicas.starts(now_s + steering.startup_s):
            self._agenda.plan(start.ready_s, start)
        stand = Stand(now_s, replicas.desired, len(replicas.ready), replicas.gpus)
        if self._stand is None or stand[1:] != self._stand[1:]:
            self._stand = stand
            steering.seen(stand)

    def _start(self, start: Start, now_s: float) -> None:
        """A replica is ready: it takes work, those that were held first."""
        replica = self._replicas.started(start)
        if replica is None:
            return
        self._routers.joined(replica.name, replica.outlook(now_s))
        self._settle(now_s)
        held, self._held = self._held, deque()
        for journey in held:
            journey.router, journey.walk = self._routers.receive(journey.request, journey.best_effort)
            self._travel(journey, now_s)
