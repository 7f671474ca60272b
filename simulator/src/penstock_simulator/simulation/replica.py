"""One replica in virtual time: a policy, an engine, and what the replica has learned of both.

As in production the policy is asked twice. `admit` decides about newcomers at the moment they come, also in
the middle of an iteration, with what can be seen then: the jobs as they were when it began, and what it
prefills. `begin` starts an iteration with the policy's step.

A policy's fault is not caught here: it would flatter whoever stands in for it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_admission import DECIDED_TOGETHER, Holds, Standing, decide
from penstock_core.domain.replica_view import ReplicaView, at_iteration_end
from penstock_core.domain.request import Job, RequestId, new_job
from penstock_core.domain.verdict import BestEffort, Rejected, Verdict

from penstock_simulator.drafter import Drafter
from penstock_simulator.drafting import Drafting
from penstock_simulator.engine_state import EngineState, no_drafts
from penstock_simulator.iteration import Iteration
from penstock_simulator.simulation.answer_lengths import AnswerLengths, answer_lengths
from penstock_simulator.simulation.fleet import Fleet
from penstock_simulator.simulation.journey import Journey
from penstock_simulator.simulation.timing import pace_of

STUCK_S = 600.0
"""A policy that keeps an engine with work idle for so long will never serve it."""


class Stuck(Exception):
    """A policy serves nobody though there is work: its defect, which no result should hide."""


class Replica:
    """A replica of a fleet.

    journeys: what it serves, by id.
    newcomers: have just arrived, and wait for their verdict.
    busy: an iteration is under way.
    replanning: it stands still, and will be asked again.
    draining: it takes nobody any more, and finishes what it has.
    """

    def __init__(self, name: str, fleet: Fleet, policy: Policy[Any], seed: int) -> None:
        self.name, self._policy, self._memory = name, policy, policy.start()
        self._pace = pace_of(fleet, seed)
        self._lengths = answer_lengths(fleet.lengths)
        self._drafting = Drafting(fleet.speculation)
        self._engine = _engine(fleet, self._lengths, seed)
        self._under_way = Iteration()
        self._moved_s = 0.0
        self._holds = Holds(fleet.limits.running + fleet.max_waiting, fleet.max_waiting)
        self._best_effort: set[RequestId] = set()
        self.journeys: dict[RequestId, Journey] = {}
        self.newcomers: list[Journey] = []
        self.busy = self.replanning = self.draining = False

    def view(self, now_s: float) -> ReplicaView:
        """Everything that its policy, or a snapshot of it, may tell."""
        busy_until_s = max(self._pace.expected_end_s, now_s)
        return self._engine.view(now_s, busy_until_s, self._pace.model, self._drafting.measured)

    def outlook(self, now_s: float) -> ReplicaView:
        """The view as of the end of the iteration under way, which newcomers and routers plan by."""
        return self.outlook_later(now_s)()

    def outlook_later(self, now_s: float) -> Callable[[], ReplicaView]:
        """The outlook of now, worked out when it is asked for: most that replicas publish nobody reads."""
        busy, busy_until_s, under_way = self.busy, max(self._pace.expected_end_s, now_s), self._under_way
        look = self._engine.view_later(now_s, busy_until_s, self._pace.model, self._drafting.measured)
        chunks = under_way.chunks()

        def outlook() -> ReplicaView:
            view = look()
            resting = under_way.resting(view.running) if busy else frozenset[RequestId]()
            return at_iteration_end(view, chunks, resting)

        return outlook

    def admit(self, now_s: float) -> Iterator[tuple[Journey, Verdict]]:
        """Verdicts for the newcomers, decided together. Whoever is not refused stays."""
        newcomers, self.newcomers = self.newcomers, []
        for start in range(0, len(newcomers), DECIDED_TOGETHER):
            group = newcomers[start : start + DECIDED_TOGETHER]
            jobs = [self._job(journey) for journey in group]
            for journey, job, verdict in zip(group, jobs, self._decide(jobs, now_s), strict=True):
                if not isinstance(verdict, Rejected):
                    self._take(journey, job._replace(best_effort=isinstance(verdict, BestEffort)), now_s)
                yield journey, verdict

    def begin(self, now_s: float) -> float | None:
        """Start an iteration, and say when it ends. None where the policy lets the engine stand still."""
        iteration = self._engine.go_on() or self._ask(now_s)
        shape = self._engine.shape()
        if shape.tokens == 0:
            self._engine.finish(now_s)
            self._check_moving(now_s)
            return None
        self.busy, self._under_way = True, iteration
        return self._pace.begin(shape, now_s)

    def _ask(self, now_s: float) -> Iteration:
        """Start what the policy wants next."""
        step, self._memory = self._policy.step(self.view(now_s), self._memory)
        return self._engine.start(step)

    def finish(self, now_s: float) -> list[Journey]:
        """End the iteration: tokens come out, the replica learns. Returns those whose answer is whole."""
        outcome = self._engine.finish(now_s)
        self.busy, self._under_way, self._moved_s = False, Iteration(), now_s
        self._pace.end(now_s)
        self._drafting.observe(outcome.drafted)
        for job_id, tokens in outcome.tokens.items():
            self.journeys[job_id].take(tokens, now_s)
        return [self._leave(job_id) for job_id in outcome.finished]

    def _job(self, journey: Journey) -> Job:
        request, true_tokens = journey.request, journey.arrival.output_tokens
        first_stage = request.targets.answer_tpot_s is not None and journey.arrival.thinking_tokens
        predicted = self._lengths.first(request, true_tokens)
        sure = self._lengths.sure(request, first_stage or true_tokens)
        return new_job(request, predicted, journey.sent_as_best_effort, sure)

    def _decide(self, new: Sequence[Job], now_s: float) -> list[Verdict]:
        standing = Standing(
            draining=self.draining,
            engine_ready=True,
            carried=len(self.journeys),
            best_effort=len(self._best_effort),
        )
        return decide(self._policy, self.outlook(now_s), new, standing, self._holds)

    def _take(self, journey: Journey, job: Job, now_s: float) -> None:
        if not self.journeys:
            self._moved_s = now_s
        if job.best_effort:
            self._best_effort.add(job.request.id)
        arrival = journey.arrival
        self._engine.add(job, arrival.output_tokens, arrival.thinking_tokens)
        self.journeys[arrival.id] = journey

    def _leave(self, job_id: RequestId) -> Journey:
        journey = self.journeys.pop(job_id)
        self._best_effort.discard(job_id)
        self._lengths.observe(journey.request, journey.arrival.output_tokens)
        return journey

    def _check_moving(self, now_s: float) -> None:
        if now_s - self._moved_s > STUCK_S:
            raise Stuck(
                f"{self.name} has {len(self.journeys)} requests, and its policy has done nothing for "
                f"{STUCK_S:g} s"
            )


def _engine(fleet: Fleet, lengths: AnswerLengths, seed: int) -> EngineState:
    told = fleet.speculation
    return EngineState(
        fleet.kv_tokens,
        fleet.limits,
        fleet.block_tokens,
        no_drafts if told is None else Drafter(told.acceptance, seed).accepted,
        lengths.longer,
    )
