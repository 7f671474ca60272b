"""The engine in real time: one iteration after the other, each as long as the truth says.

An iteration cannot be interrupted: what arrives or leaves meanwhile counts at its end. Ends lie on an
absolute schedule, each a truth's duration after the one before, so the milliseconds by which a timer fires
early or late do not add up. When the machine is too slow for it, the schedule gives way by what is more than
`CATCH_UP_S`, and the engine is simply slower, as a starved one would be.
"""

import asyncio
import time
from collections.abc import Callable

from penstock_core.domain.request import Job
from penstock_core.timing.time_model import BatchWork

from penstock_simulator.answer import Answer
from penstock_simulator.belief import Belief
from penstock_simulator.drafting import Drafting
from penstock_simulator.engine_state import EngineState
from penstock_simulator.iteration import Outcome
from penstock_simulator.metrics import EngineMetrics
from penstock_simulator.planning import Planning
from penstock_simulator.report import Measured, StateReports
from penstock_simulator.truth import Truth

CATCH_UP_S = 0.05
"""Most by which the engine runs after its schedule. A moment's want of a CPU, which no GPU feels, is made up
for."""

HEARTBEAT_S = 1.0
"""An idle engine reports as often, so that a sidecar that has just started learns of it."""

REPLAN_S = 0.01
"""Wait after a step that did nothing though there is work: the policy is waiting for time to pass."""


class StepLoop:
    """The running engine. `run` it beside whatever submits."""

    def __init__(
        self,
        *,
        state: EngineState,
        planning: Planning,
        belief: Belief,
        drafting: Drafting,
        truth: Truth,
        reports: StateReports,
        metrics: EngineMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state, self.metrics, self.now_s = state, metrics, clock
        self._planning, self._belief, self._drafting = planning, belief, drafting
        self._truth, self._reports = truth, reports
        self._answers: dict[str, Answer] = {}
        self._changed = asyncio.Event()
        self._born_s = clock()
        self._last: Measured | None = None

    def submit(self, job: Job, answer_tokens: int, thinking_tokens: int = 0) -> Answer:
        """Take a request, as the state does. Raises NeverFits, ValueError."""
        self.state.add(job, answer_tokens, thinking_tokens)
        answer = self._answers[job.request.id] = Answer(job.request.id, self.now_s())
        self.metrics.prompt_tokens += job.request.prompt_tokens
        self._changed.set()
        return answer

    def abort(self, answer: Answer) -> None:
        """Give a request up, if it has not ended: its blocks are free at once."""
        if self._answers.pop(answer.job_id, None) is not None:
            self.state.abort(answer.job_id)
            answer.abort()
            self._changed.set()

    async def run(self) -> None:
        """Iterate until cancelled."""
        due_s = began_s = self.now_s()
        while True:
            iteration = self._planning.begin(self.now_s(), self._belief.model, self._drafting.measured)
            shape = iteration.shape()
            work = shape.work()
            predicted_s = self._belief.model.seconds(work)
            self._reports.send(self.state, self._last, iteration, predicted_s, self._drafting.measured)
            self.metrics.reports_lost, self._last = self._reports.lost, None
            if work.tokens == 0:
                self.state.finish(self.now_s())  # a step that only preempts takes no time
                await self._rest()
                due_s = began_s = self.now_s()
                continue
            due_s = max(due_s, self.now_s() - CATCH_UP_S) + self._truth.seconds(shape, due_s - self._born_s)
            await asyncio.sleep(due_s - self.now_s())
            began_s = self._end(work, began_s)

    def _end(self, work: BatchWork, began_s: float) -> float:
        """Bring the iteration's tokens out; the moment that it did."""
        now_s = self.now_s()
        outcome = self.state.finish(now_s)
        self._drafting.observe(outcome.drafted)
        self._deliver(outcome, now_s)
        self.metrics.step_tokens.observe(work.tokens)
        self._last = Measured(work, now_s - began_s)
        self._belief.observe(work, now_s - began_s)
        return now_s

    def _deliver(self, outcome: Outcome, now_s: float) -> None:
        gaps: dict[float, int] = {}
        for job_id, new_tokens in outcome.tokens.items():
            answer = self._answers[job_id]
            self.metrics.generation_tokens += new_tokens
            if answer.tokens == 0:
                self.metrics.ttft.observe(now_s - answer.arrived_s)
            else:
                gap_s = now_s - answer.last_s
                gaps[gap_s] = gaps.get(gap_s, 0) + 1
            answer.put(new_tokens, outcome.finished.get(job_id), now_s)
        for gap_s, times in gaps.items():
            self.metrics.gap.observe(gap_s, times)
        for job_id, reason in outcome.finished.items():
            self._finish(self._answers.pop(job_id), reason.value)

    def _finish(self, answer: Answer, reason: str) -> None:
        self.metrics.finished[reason] += 1
        self.metrics.e2e.observe(answer.last_s - answer.arrived_s)
        if answer.tokens > 1:
            self.metrics.pace.observe((answer.last_s - answer.first_s) / (answer.tokens - 1))

    async def _rest(self) -> None:
        self._changed.clear()
        rest_s = REPLAN_S if self._answers else HEARTBEAT_S
        try:
            async with asyncio.timeout(rest_s):
                await self._changed.wait()
        except TimeoutError:
            return
