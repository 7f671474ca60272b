"""One replica in virtual time: a policy, an engine, and the replica's learned state.

As in production, the policy is called at two points. `admit` decides about new requests when they arrive,
also during an iteration, from the jobs as they were at its begin and its prefill chunks. `begin` starts an
iteration with the policy's step.

A policy's exceptions are not caught: a fallback would distort the policy's results.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_admission import DECIDED_TOGETHER, AdmissionState, InFlightLimits, decide
from penstock_core.domain.replica_view import ReplicaView, at_iteration_end
from penstock_core.domain.request import Job, RequestId, new_job
from penstock_core.domain.verdict import Admitted, BestEffort, Rejected, Verdict

from penstock_simulator.engine.drafter import Drafter
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.generation import no_drafts
from penstock_simulator.engine.iteration import Iteration
from penstock_simulator.engine.measured_speculation import MeasuredSpeculation
from penstock_simulator.prefix_cache.block_keys import BlockKey
from penstock_simulator.simulation.answer_lengths import AnswerLengths, answer_lengths
from penstock_simulator.simulation.fleet import Fleet
from penstock_simulator.simulation.iteration_timer import iteration_timer
from penstock_simulator.simulation.outcome import FirstVerdict
from penstock_simulator.simulation.simulated_request import SimulatedRequest

STUCK_S = 600.0
"""Longest time that a policy may leave an engine with requests idle."""


class StuckPolicy(Exception):
    """A policy plans no batch although there are requests: a defect of the policy."""


class SimulatedReplica:
    """A replica of a fleet.

    requests: requests that it serves, by id.
    new_requests: requests that wait for their verdict.
    busy: whether an iteration is running.
    replanning: whether it is idle and a retry of its policy is scheduled.
    draining: whether it takes no new requests.
    """

    def __init__(self, name: str, fleet: Fleet, policy: Policy[Any], seed: int) -> None:
        self.name, self._policy, self._memory = name, policy, policy.start()
        self._timer = iteration_timer(fleet, seed)
        self._lengths = answer_lengths(fleet.lengths)
        self._speculation = MeasuredSpeculation(fleet.speculation)
        self._engine = _engine(fleet, self._lengths, seed)
        self._iteration = Iteration()
        self._progress_s = 0.0
        self._in_flight_limits = InFlightLimits(fleet.limits.running + fleet.max_waiting, fleet.max_waiting)
        self._best_effort: set[RequestId] = set()
        self.requests: dict[RequestId, SimulatedRequest] = {}
        self.new_requests: list[SimulatedRequest] = []
        self.busy = self.replanning = self.draining = False

    def view(self, now_s: float) -> ReplicaView:
        """Return the replica as its policy sees it."""
        busy_until_s = self._timer.busy_until_s(now_s)
        return self._engine.view(now_s, busy_until_s, self._timer.model, self._speculation.measured)

    def planning_view(self, now_s: float) -> ReplicaView:
        """Return the view as of the end of the running iteration, which admission and snapshots use."""
        return self.lazy_planning_view(now_s)()

    def lazy_planning_view(self, now_s: float) -> Callable[[], ReplicaView]:
        """Return a function that computes the planning view at the time of this call; most are never read."""
        busy, busy_until_s, iteration = self.busy, self._timer.busy_until_s(now_s), self._iteration
        model = self._timer.admission_model(now_s)
        read_view = self._engine.lazy_view(now_s, busy_until_s, model, self._speculation.measured)
        chunks = iteration.chunks()

        def planning_view() -> ReplicaView:
            view = read_view()
            resting = iteration.resting(view.running) if busy else frozenset[RequestId]()
            return at_iteration_end(view, chunks, resting)

        return planning_view

    def cached_tokens(self, keys: Sequence[BlockKey], prompt_tokens: int) -> int:
        """Return the tokens that its engine has cached of a prompt whose blocks have these keys."""
        return self._engine.cached_tokens(keys, prompt_tokens)

    def admit(self, now_s: float) -> Iterator[tuple[SimulatedRequest, Verdict]]:
        """Decide about all new requests together and yield the verdicts; requests not rejected are queued."""
        new_requests, self.new_requests = self.new_requests, []
        for start in range(0, len(new_requests), DECIDED_TOGETHER):
            group = new_requests[start : start + DECIDED_TOGETHER]
            jobs = [self._job(simulated) for simulated in group]
            for simulated, job, verdict in zip(group, jobs, self._decide(jobs, now_s), strict=True):
                if not isinstance(verdict, Rejected):
                    self._take(simulated, job, verdict, now_s)
                yield simulated, verdict

    def begin(self, now_s: float) -> float | None:
        """Start an iteration and return its end time; None if the policy leaves the engine idle."""
        iteration = self._engine.repeat_last() or self._step(now_s)
        shape = self._engine.shape()
        if shape.tokens == 0:
            self._engine.finish(now_s)
            self._check_progress(now_s)
            return None
        self.busy, self._iteration = True, iteration
        return self._timer.begin(shape, now_s)

    def _step(self, now_s: float) -> Iteration:
        """Start the policy's next step."""
        step, self._memory = self._policy.step(self.view(now_s), self._memory)
        return self._engine.start(step)

    def finish(self, now_s: float) -> list[SimulatedRequest]:
        """End the iteration and learn from it. Returns the requests whose answer is complete."""
        outcome = self._engine.finish(now_s)
        self.busy, self._iteration, self._progress_s = False, Iteration(), now_s
        self._timer.end(now_s)
        self._speculation.observe(outcome.drafted)
        for job_id, tokens in outcome.tokens.items():
            self.requests[job_id].take(tokens, now_s)
        for job_id, tokens in outcome.cached_tokens.items():
            if job_id in self.requests:
                self.requests[job_id].started(tokens)
        return [self._finish_request(job_id, now_s) for job_id in outcome.finished]

    def _job(self, simulated: SimulatedRequest) -> Job:
        request, true_tokens = simulated.request, simulated.arrival.output_tokens
        first_stage = request.targets.answer_tpot_s is not None and simulated.arrival.thinking_tokens
        predicted = self._lengths.first(request, true_tokens)
        sure = self._lengths.sure(request, first_stage or true_tokens)
        job = new_job(request, predicted, simulated.sent_as_best_effort, sure)
        return self._engine.candidate(job, simulated.keys)

    def _decide(self, new: Sequence[Job], now_s: float) -> list[Verdict]:
        state = AdmissionState(
            draining=self.draining,
            engine_ready=True,
            requests=len(self.requests),
            best_effort=len(self._best_effort),
        )
        return decide(self._policy, self.planning_view(now_s), new, state, self._in_flight_limits)

    def _take(
        self, simulated: SimulatedRequest, job: Job, verdict: Admitted | BestEffort, now_s: float
    ) -> None:
        job = job._replace(best_effort=isinstance(verdict, BestEffort))
        if not self.requests:
            self._progress_s = now_s
        if job.best_effort:
            self._best_effort.add(job.request.id)
        arrival = simulated.arrival
        pinned = isinstance(verdict, Admitted) and verdict.counts_on_cache
        self._engine.add(job, arrival.output_tokens, arrival.thinking_tokens, simulated.keys, pinned=pinned)
        self.requests[arrival.id] = simulated

    def _finish_request(self, job_id: RequestId, now_s: float) -> SimulatedRequest:
        simulated = self.requests.pop(job_id)
        self._best_effort.discard(job_id)
        self._lengths.observe(simulated.request, simulated.arrival.output_tokens)
        if simulated.verdict is FirstVerdict.ADMITTED:
            self._timer.judged(simulated.served_outcome().met, now_s)
        return simulated

    def _check_progress(self, now_s: float) -> None:
        if now_s - self._progress_s > STUCK_S:
            raise StuckPolicy(
                f"{self.name} has {len(self.requests)} requests, and its policy has planned no batch for "
                f"{STUCK_S:g} s"
            )


def _engine(fleet: Fleet, lengths: AnswerLengths, seed: int) -> EngineState:
    speculation = fleet.speculation
    return EngineState(
        fleet.kv_tokens,
        fleet.limits,
        fleet.block_tokens,
        no_drafts if speculation is None else Drafter(speculation.acceptance, seed).accepted,
        lengths.extend_prediction,
        prefix_caching=fleet.prefix_caching,
    )
