"""The engine in real time: iterations in sequence, each as long as its ground truth.

An iteration cannot be interrupted: arrivals and aborts take effect at its end. Iteration ends follow an
absolute schedule, so timer errors do not accumulate. If the machine is too slow for the schedule, the part of
the delay beyond `CATCH_UP_S` is not made up for, and the engine is slower.
"""

import asyncio
from collections.abc import Callable, Sequence

from penstock_core.domain.request import Job
from penstock_core.timing.time_model import BatchWork
from penstock_runtime.clock import monotonic

from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.iteration import IterationResult
from penstock_simulator.engine.learned_time_model import LearnedTimeModel
from penstock_simulator.engine.measured_speculation import MeasuredSpeculation
from penstock_simulator.engine_timing.ground_truth import GroundTruth
from penstock_simulator.prefix_cache.block_keys import BlockKey
from penstock_simulator.serving.metrics import EngineMetrics
from penstock_simulator.serving.step_planner import StepPlanner
from penstock_simulator.serving.step_reports import MeasuredIteration, StepReportSender
from penstock_simulator.serving.token_stream import TokenStream

CATCH_UP_S = 0.05
"""Largest delay behind the schedule that is made up for, so that short CPU contention has no effect."""

HEARTBEAT_S = 1.0
"""Interval of an idle engine's reports, from which a restarted sidecar learns the engine's state."""

REPLAN_S = 0.01
"""Pause after an empty step although there are requests: the policy waits for time to pass."""


class StepLoop:
    """The running engine. `run` it concurrently with `submit` and `abort`."""

    def __init__(
        self,
        *,
        state: EngineState,
        planner: StepPlanner,
        time_model: LearnedTimeModel,
        speculation: MeasuredSpeculation,
        truth: GroundTruth,
        reports: StepReportSender,
        metrics: EngineMetrics,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.state, self.metrics, self.now_s = state, metrics, clock
        self._planner, self._time_model, self._speculation = planner, time_model, speculation
        self._truth, self._reports = truth, reports
        self._streams: dict[str, TokenStream] = {}
        self._changed = asyncio.Event()
        self._started_s = clock()
        self._last: MeasuredIteration | None = None

    def submit(
        self,
        job: Job,
        answer_tokens: int,
        thinking_tokens: int = 0,
        block_keys: Sequence[BlockKey] = (),
        *,
        pinned: bool = False,
    ) -> TokenStream:
        """Queue a request and return its token stream. Raises NeverFits, ValueError.

        block_keys: keys of its prompt's full blocks. pinned: whether its admission relies on cached blocks.
        """
        self.state.add(job, answer_tokens, thinking_tokens, block_keys, pinned=pinned)
        stream = self._streams[job.request.id] = TokenStream(job.request.id, self.now_s())
        self.metrics.prompt_tokens += job.request.prompt_tokens
        self._changed.set()
        return stream

    def abort(self, stream: TokenStream) -> None:
        """Abort a request if it has not ended. Its blocks are freed immediately."""
        if self._streams.pop(stream.job_id, None) is not None:
            self.state.abort(stream.job_id)
            stream.abort()
            self._changed.set()

    async def run(self) -> None:
        """Iterate until cancelled."""
        due_s = began_s = self.now_s()
        while True:
            iteration = self._planner.begin(self.now_s(), self._time_model.model, self._speculation.measured)
            shape = iteration.shape()
            work = shape.work()
            predicted_s = self._time_model.model.seconds(work)
            self._reports.send(self.state, self._last, iteration, predicted_s, self._speculation.measured)
            self.metrics.reports_lost, self._last = self._reports.lost, None
            if work.tokens == 0:
                self.state.finish(self.now_s())  # a step that only preempts takes no time
                await self._wait_for_change()
                due_s = began_s = self.now_s()
                continue
            due_s = max(due_s, self.now_s() - CATCH_UP_S) + self._truth.seconds(
                shape, due_s - self._started_s
            )
            await asyncio.sleep(due_s - self.now_s())
            began_s = self._end(work, began_s)

    def _end(self, work: BatchWork, began_s: float) -> float:
        """End the iteration and deliver its tokens. Returns the current time.

        An iteration that makes up for a delay may have no duration; the time model does not learn from it.
        """
        now_s = self.now_s()
        result = self.state.finish(now_s)
        self._speculation.observe(result.drafted)
        self._deliver(result, now_s)
        self.metrics.step_tokens.observe(work.tokens)
        self._last = MeasuredIteration(work, now_s - began_s)
        if now_s > began_s:
            self._time_model.observe(work, now_s - began_s)
        return now_s

    def _deliver(self, result: IterationResult, now_s: float) -> None:
        for job_id, cached_tokens in result.cached_tokens.items():
            started = self._streams.get(job_id)
            if started is not None and started.cached_tokens is None:
                started.cached_tokens = cached_tokens
        itls: dict[float, int] = {}
        for job_id, new_tokens in result.tokens.items():
            stream = self._streams[job_id]
            self.metrics.generation_tokens += new_tokens
            if stream.tokens == 0:
                self.metrics.ttft.observe(now_s - stream.arrived_s)
            else:
                itl_s = now_s - stream.last_s
                itls[itl_s] = itls.get(itl_s, 0) + 1
            stream.put(new_tokens, result.finished.get(job_id), now_s)
        for itl_s, times in itls.items():
            self.metrics.itl.observe(itl_s, times)
        for job_id, reason in result.finished.items():
            self._finish(self._streams.pop(job_id), reason.value)

    def _finish(self, stream: TokenStream, reason: str) -> None:
        self.metrics.finished[reason] += 1
        self.metrics.e2e.observe(stream.last_s - stream.arrived_s)
        if stream.tokens > 1:
            self.metrics.tpot.observe((stream.last_s - stream.first_s) / (stream.tokens - 1))

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        timeout_s = REPLAN_S if self._streams else HEARTBEAT_S
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return
