"""The discrete-event simulation of a fleet.

Events are: an iteration ends, a request arrives at its router or at a replica, the policy of an idle engine
is called again, the autoscaler decides, a replica has started. At each time, events are processed in this
order until none is left: iterations end, requests arrive, replicas decide about all requests that have
arrived together. Then every idle engine with requests begins its next iteration. While no replica is ready,
requests wait at the routers.

The result depends only on the arguments and the seed; no clock is read. Memory is bounded by the requests in
progress: arrivals are read from their iterator when they are due, and an outcome is yielded when its request
ends. The caller may stop at any outcome.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from penstock_core.autoscaling.demand import DemandObservation
from penstock_core.domain.policy import Knobs, Policy
from penstock_core.domain.verdict import Admitted, Rejected, Verdict
from penstock_core.routing.attempts import Try

from penstock_simulator import policies
from penstock_simulator.arrival import Arrival
from penstock_simulator.simulation.autoscaling.autoscaler import FleetAutoscaler, ReplicaCounts
from penstock_simulator.simulation.autoscaling.demand_counts import DemandCounts
from penstock_simulator.simulation.autoscaling.replica_set import FleetReplicas, ReplicaStart
from penstock_simulator.simulation.event_queue import EventQueue
from penstock_simulator.simulation.fleet import Fleet
from penstock_simulator.simulation.outcome import FirstVerdict, SimulatedOutcome
from penstock_simulator.simulation.replica import SimulatedReplica
from penstock_simulator.simulation.routers import Routers
from penstock_simulator.simulation.sessions import Sessions
from penstock_simulator.simulation.simulated_request import SimulatedRequest, prompt_keys, request_of

REPLAN_S = 0.01
"""Delay until the policy of an engine is called again after an empty step."""

MOST_REPLICAS = 64
"""Most replicas of a fleet, which bounds the seeds of replicas."""

BuildPolicy = Callable[[str, Knobs], Policy[Any]]


def simulate(
    fleet: Fleet,
    arrivals: Iterable[Arrival],
    seed: int,
    build: BuildPolicy = policies.build,
    autoscaler: FleetAutoscaler | None = None,
) -> Iterator[SimulatedOutcome]:
    """Serve arrivals, which are sorted by time, and yield each outcome when its request ends.

    build: returns each replica's policy by name and knobs; pass another one to measure or replace policies.
    autoscaler: changes the number of replicas, which starts as in `fleet`; None keeps it.

    Raises UnknownPolicy, VllmMissing, UnknownTimeModel, StuckPolicy, and any exception of a policy.
    """
    return _Simulation(fleet, arrivals, seed, build, autoscaler).outcomes()


class _RequestArrives(NamedTuple):
    """A request arrives at a replica."""

    simulated: SimulatedRequest
    replica: SimulatedReplica


class _TurnArrives(NamedTuple):
    """A request of a session arrives, after its think time."""

    arrival: Arrival


class _IterationEnds(NamedTuple):
    """A replica's iteration ends."""

    replica: SimulatedReplica


class _PolicyRetried(NamedTuple):
    """The policy of an idle replica is called again."""

    replica: SimulatedReplica


class _AutoscalerDecides(NamedTuple):
    """The autoscaler decides."""


_Event = _TurnArrives | _RequestArrives | _IterationEnds | _PolicyRetried | _AutoscalerDecides | ReplicaStart


class _Simulation:
    """One simulation run."""

    def __init__(
        self,
        fleet: Fleet,
        arrivals: Iterable[Arrival],
        seed: int,
        build: BuildPolicy,
        autoscaler: FleetAutoscaler | None,
    ) -> None:
        fewest = 1 if autoscaler is None else 0
        if not fewest <= fleet.replicas <= MOST_REPLICAS:
            raise ValueError(
                f"{fleet.replicas} replicas: the simulation supports {fewest} to {MOST_REPLICAS}"
            )

        def make(ordinal: int) -> SimulatedReplica:
            policy = build(fleet.policy, fleet.knobs)
            return SimulatedReplica(f"r{ordinal}", fleet, policy, seed * MOST_REPLICAS + ordinal)

        self._fleet, self._autoscaler = fleet, autoscaler
        self._replicas = FleetReplicas(fleet.replicas, make)
        self._routers, self._sessions = Routers(fleet), Sessions()
        for replica in self._replicas.ready.values():
            self._routers.add_replica(replica.name, replica.planning_view(0.0), replica.cached_tokens)
        self._events: EventQueue[_Event] = EventQueue()
        self._arrivals = iter(arrivals)
        self._next_arrival = next(self._arrivals, None)
        self._to_start: dict[str, SimulatedReplica] = {}
        self._to_decide: dict[str, SimulatedReplica] = {}
        self._ended: list[SimulatedOutcome] = []
        self._counts, self._in_progress, self._thinking = DemandCounts(fleet.tiers), 0, 0
        self._held: deque[SimulatedRequest] = deque()
        self._decided_s = 0.0
        self._last_counts: ReplicaCounts | None = None
        if autoscaler is not None:
            self._events.schedule(0.0, _AutoscalerDecides())

    @property
    def _next_arrival_s(self) -> float | None:
        return None if self._next_arrival is None else self._next_arrival.arrival_s

    def outcomes(self) -> Iterator[SimulatedOutcome]:
        """Run to the end, and yield outcomes."""
        while (now_s := self._events.next_before_s(self._next_arrival_s)) is not None:
            while self._process_due(now_s):
                self._decide(now_s)
            self._start_iterations(now_s)
            yield from self._ended
            self._ended.clear()

    def _process_due(self, now_s: float) -> bool:
        """Process all due events and arrivals. Returns whether there were any."""
        processed = False
        while (event := self._events.pop_due(now_s)) is not None:
            self._process(event, now_s)
            processed = True
        while self._next_arrival is not None and self._next_arrival.arrival_s <= now_s:
            arrival, self._next_arrival = self._next_arrival, next(self._arrivals, None)
            self._arrive(arrival, now_s)
            processed = True
        return processed

    def _process(self, event: _Event, now_s: float) -> None:
        if isinstance(event, _AutoscalerDecides):
            self._autoscale(now_s)
            return
        if isinstance(event, ReplicaStart):
            self._start(event, now_s)
            return
        if isinstance(event, _TurnArrives):
            self._thinking -= 1
            self._send(event.arrival, now_s)
            return
        replica = event.replica
        if isinstance(event, _RequestArrives):
            replica.new_requests.append(event.simulated)
            self._to_decide[replica.name] = replica
            return
        replica.replanning &= not isinstance(event, _PolicyRetried)
        if isinstance(event, _IterationEnds):
            for simulated in replica.finish(now_s):
                self._end(simulated.served_outcome(), now_s)
        self._to_start[replica.name] = replica

    def _arrive(self, arrival: Arrival, now_s: float) -> None:
        at_s = self._sessions.arrive(arrival, now_s)
        if at_s is None:
            return
        if at_s > now_s:
            self._send_at(arrival, at_s)
        else:
            self._send(arrival, now_s)

    def _send_at(self, arrival: Arrival, at_s: float) -> None:
        self._thinking += 1
        self._events.schedule(at_s, _TurnArrives(arrival))

    def _send(self, arrival: Arrival, now_s: float) -> None:
        """Create a request at its router, and send it to its first replica."""
        fleet = self._fleet
        tier = fleet.tiers[arrival.tier or fleet.default_tier]
        request = request_of(arrival, tier, fleet, now_s)
        best_effort = tier.best_effort or self._sessions.best_effort(arrival)
        keys = prompt_keys(arrival, fleet)
        router, attempts = self._routers.receive(request, best_effort, keys)
        simulated = SimulatedRequest(arrival, request, best_effort, router, attempts, keys)
        self._in_progress += 1
        if arrival.prompt_tokens + arrival.output_tokens > fleet.longest_tokens:
            self._end(simulated.unserved_outcome(FirstVerdict.FAILED), now_s)
        else:
            self._counts.arrived(simulated)
            self._send_to_next(simulated, now_s)

    def _send_to_next(self, simulated: SimulatedRequest, now_s: float) -> None:
        if not self._replicas.ready:
            self._held.append(simulated)
            return
        action = self._routers.send(simulated, now_s)
        if isinstance(action, Try):
            arrives = _RequestArrives(simulated, self._replicas.ready[action.replica])
            self._events.schedule(now_s + self._fleet.hop_latency_s, arrives)
        else:
            self._counts.rejected(simulated)
            self._end(simulated.unserved_outcome(FirstVerdict.REJECTED), now_s)

    def _decide(self, now_s: float) -> None:
        """Let every replica decide about the requests that have arrived there."""
        to_decide, self._to_decide = self._to_decide, {}
        for replica in to_decide.values():
            for simulated, verdict in replica.admit(now_s):
                self._answered(simulated, verdict, now_s)
            self._to_start[replica.name] = replica

    def _answered(self, simulated: SimulatedRequest, verdict: Verdict, now_s: float) -> None:
        assert simulated.tried is not None, "it was sent to this replica"
        self._counts.answered(simulated, verdict)
        self._routers.answered(simulated, simulated.tried, verdict, now_s)
        if isinstance(verdict, Rejected):
            self._send_to_next(simulated, now_s)
        else:
            simulated.verdict = (
                FirstVerdict.ADMITTED if isinstance(verdict, Admitted) else FirstVerdict.BEST_EFFORT
            )

    def _start_iterations(self, now_s: float) -> None:
        """Start the next iteration of idle replicas with requests, and publish snapshots."""
        to_start, self._to_start = self._to_start, {}
        for replica in to_start.values():
            if not replica.busy and replica.requests:
                self._start_iteration(replica, now_s)
            if not replica.draining:
                self._routers.publish(replica.name, replica.lazy_planning_view(now_s), now_s)
            elif not replica.requests and self._replicas.drained(replica):
                self._start_missing_replicas(now_s)

    def _start_iteration(self, replica: SimulatedReplica, now_s: float) -> None:
        end_s = replica.begin(now_s)
        if end_s is not None:
            self._events.schedule(end_s, _IterationEnds(replica))
        elif not replica.replanning:
            replica.replanning = True
            self._events.schedule(now_s + REPLAN_S, _PolicyRetried(replica))

    def _end(self, outcome: SimulatedOutcome, now_s: float) -> None:
        self._ended.append(outcome)
        self._in_progress -= 1
        self._counts.ended(outcome)
        following = self._sessions.ended(outcome, now_s)
        if following is not None:
            self._send_at(following, now_s + (following.think_s or 0.0))

    def _autoscale(self, now_s: float) -> None:
        """Apply the autoscaler's decision, and schedule the next while there are requests."""
        autoscaler, replicas = self._autoscaler, self._replicas
        assert autoscaler is not None, "decisions are scheduled only with an autoscaler"
        demand = DemandObservation(
            elapsed_s=now_s - self._decided_s,
            desired=replicas.desired,
            tiers=self._counts.read(),
            held=len(self._held),
            replicas=tuple(replicas.demands(now_s)),
        )
        self._decided_s = now_s
        replicas.desired = autoscaler.decide(demand, now_s)
        for replica in replicas.drain_surplus():
            self._routers.remove_replica(replica.name)
            self._to_start[replica.name] = replica
        self._start_missing_replicas(now_s)
        if self._next_arrival is not None or self._in_progress or self._thinking:
            self._events.schedule(now_s + autoscaler.period_s, _AutoscalerDecides())

    def _start_missing_replicas(self, now_s: float) -> None:
        """Start missing replicas, and report the numbers of replicas if they have changed."""
        autoscaler, replicas = self._autoscaler, self._replicas
        assert autoscaler is not None, "replicas are added and removed only with an autoscaler"
        for start in replicas.start_missing(now_s + autoscaler.startup_s):
            self._events.schedule(start.ready_s, start)
        counts = ReplicaCounts(now_s, replicas.desired, len(replicas.ready), replicas.gpus)
        if self._last_counts is None or counts[1:] != self._last_counts[1:]:
            self._last_counts = counts
            autoscaler.on_change(counts)

    def _start(self, start: ReplicaStart, now_s: float) -> None:
        """Add a replica that is ready, and send it the requests that waited for one."""
        replica = self._replicas.finish_start(start)
        if replica is None:
            return
        self._routers.add_replica(replica.name, replica.planning_view(now_s), replica.cached_tokens)
        self._start_missing_replicas(now_s)
        held, self._held = self._held, deque()
        for simulated in held:
            simulated.router, simulated.attempts = self._routers.receive(
                simulated.request, simulated.best_effort, simulated.keys
            )
            self._send_to_next(simulated, now_s)
