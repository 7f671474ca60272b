"""Step reports of a simulated engine as the plug-in in vLLM makes them: by its recorder and its sender.

A boundary after which each running request has one token more is reported as just that, and all others with
all requests. The plug-in's thread is left out: what it would send is sent at once.
"""

from collections.abc import Sequence
from queue import SimpleQueue
from typing import cast

from penstock_core.domain.request import Job
from penstock_core.timing.speculation import Speculation
from penstock_proto.report_socket import ReportSocket
from penstock_runtime.clock import monotonic
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.iteration import Iteration
from penstock_simulator.serving.step_reports import MeasuredIteration, ReportSink
from penstock_vllm.pipeline import MeasuredStep
from penstock_vllm.reports import Boundary, BoundaryRecorder, CacheReport, Further, ReportRows, Reports
from penstock_vllm.view import KvMemory


class PluginReports:
    """Takes the place of a simulated engine's `StepReportSender`."""

    def __init__(self, sink: ReportSink, *, checks_tickets: bool) -> None:
        self._reports = Reports(cast(ReportSocket, sink), checks_tickets=checks_tickets)
        self._queue: SimpleQueue[Boundary | Further] = SimpleQueue()
        self._recorder = BoundaryRecorder(self._reports, self._queue)
        self._last: tuple[tuple[Job, ...], tuple[Job, ...]] = (), ()
        self._turns = self._moves = self._skipped = 0

    @property
    def lost(self) -> int:
        """How many reports were not taken."""
        return self._reports.lost

    def send(
        self,
        state: EngineState,
        ended: MeasuredIteration | None,
        started: Iteration,
        next_duration_s: float,
        speculation: Speculation | None = None,
    ) -> None:
        """Report the iteration that has ended, the one that has started, and all requests."""
        now_s, chunks = monotonic(), started.chunks()
        running, waiting = tuple(state.running), tuple(map(_without_cached, state.waiting))
        self._count(running, waiting)
        memory = KvMemory(state.total_blocks, state.free_blocks, state.block_tokens)
        measured = None if ended is None else MeasuredStep(*ended)
        cache = _cache(state)
        further = Further(measured, memory, next_duration_s, self._moves, cache)
        if not running or waiting or chunks or not self._recorder.repeat(self._turns, further, now_s):
            rows = ReportRows(
                (*running, *waiting),
                {row: chunks[job.request.id] for row, job in enumerate(running) if job.request.id in chunks},
            )
            now = Boundary(
                measured,
                len(running),
                len(waiting),
                state.preemptions,
                memory,
                next_duration_s,
                speculation,
                {},
                self._turns,
                self._moves,
                rows,
                cache,
            )
            self._recorder.record(now, now_s)
        while not self._queue.empty():
            skipped = self._recorder.skipped
            self._reports.send(self._queue.get(), skipped - self._skipped)
            self._skipped = skipped

    def _count(self, running: tuple[Job, ...], waiting: tuple[Job, ...]) -> None:
        """Count a move where each running request has one token more and nothing else is different."""
        if (tuple(map(_further, self._last[0])), self._last[1]) == (tuple(map(_known, running)), waiting):
            self._moves += 1
        else:
            self._turns += 1
        self._last = running, waiting


def _known(job: Job) -> tuple[object, ...]:
    return job.request.id, job.computed_tokens, job.generated_tokens, job.best_effort


def _further(job: Job) -> tuple[object, ...]:
    return job.request.id, job.computed_tokens + 1, job.generated_tokens + 1, job.best_effort


def _without_cached(job: Job) -> Job:
    return job if job.unheld_blocks is None else job._replace(computed_tokens=0)


def _cache(state: EngineState) -> CacheReport | None:
    cached = state.cached
    if cached is None:
        return None
    waiting: Sequence[Job] = state.waiting
    found = [(job.computed_tokens, job.unheld_blocks or 0) for job in waiting]
    return CacheReport(cached.resets, list(cached.served.changes()), found)
