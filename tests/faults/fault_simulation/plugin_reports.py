"""Step reports of a simulated engine as the plug-in in vLLM makes them: from its ledger, by its recorder.

A boundary after which each running request has one token more is reported as just that, and all others with
all requests. The plug-in's thread is left out: what it would send is sent at once.
"""

from collections.abc import Callable
from queue import SimpleQueue
from typing import cast

from fault_simulation.plugin_ledger import PluginLedger
from penstock_core.domain.shared_prefixes import SharedPrefixes
from penstock_core.timing.speculation import Speculation
from penstock_proto.report_socket import ReportSocket
from penstock_runtime.clock import monotonic
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.iteration import Iteration
from penstock_simulator.serving.step_reports import MeasuredIteration, ReportSink
from penstock_vllm.ledger import HeldRequest
from penstock_vllm.pipeline import MeasuredStep
from penstock_vllm.reports import Boundary, BoundaryRecorder, CacheReport, Reports, UniformBoundary, rows_of
from penstock_vllm.view import KvMemory


class PluginReports:
    """Takes the place of a simulated engine's `StepReportSender`.

    differs: called with what the ledger has otherwise than the engine.
    """

    def __init__(self, sink: ReportSink, *, checks_tickets: bool, differs: Callable[[str], None]) -> None:
        self._reports = Reports(cast(ReportSocket, sink), checks_tickets=checks_tickets)
        self._queue: SimpleQueue[Boundary | UniformBoundary] = SimpleQueue()
        self._recorder = BoundaryRecorder(self._reports, self._queue)
        self._plugin, self._differs = PluginLedger(), differs
        self._skipped = 0

    @property
    def lost(self) -> int:
        """How many reports were not taken."""
        return self._reports.lost

    def miss(self, steps: int) -> None:
        """Let the plug-in's code fail in the next steps. It reports none of them."""
        self._plugin.misses += steps

    def send(
        self,
        state: EngineState,
        ended: MeasuredIteration | None,
        started: Iteration,
        next_duration_s: float,
        speculation: Speculation | None = None,
    ) -> None:
        """Report the iteration that has ended, the one that has started, and all requests."""
        now_s, plugin = monotonic(), self._plugin
        ledger = plugin.ledger
        if not plugin.begin(state, started, now_s):
            return
        if differing := plugin.differing((*state.running, *state.waiting)):
            self._differs(differing)
        memory = KvMemory(state.total_blocks, state.free_blocks, state.block_tokens)
        measured = None if ended is None else MeasuredStep(*ended)
        cache = _cache(state, ledger.waiting)
        further = UniformBoundary(measured, memory, next_duration_s, ledger.uniform_steps, cache)
        repeats = plugin.running and not ledger.waiting and not started.chunks()
        if not repeats or not self._recorder.repeat(ledger.changes, further, now_s):
            known = plugin.running and self._recorder.knows(ledger.changes, plugin.steps, now_s)
            now = Boundary(
                measured,
                len(plugin.running),
                len(ledger.waiting),
                ledger.preemptions,
                memory,
                next_duration_s,
                speculation,
                {},
                ledger.changes,
                ledger.uniform_steps,
                None if known else rows_of(plugin.running, ledger, plugin.steps),
                cache,
            )
            self._recorder.record(now, now_s)
        while not self._queue.empty():
            skipped = self._recorder.skipped
            self._reports.send(self._queue.get(), skipped - self._skipped)
            self._skipped = skipped


def _cache(state: EngineState, waiting: list[HeldRequest]) -> CacheReport | None:
    cached = state.cached
    if cached is None:
        return None
    jobs = {job.request.id: job for job in state.waiting}
    seen = [jobs[held.job.request.id] for held in waiting]
    found = [(job.computed_tokens, job.unheld_blocks or 0) for job in seen]
    shared = state.shared_prefixes or SharedPrefixes()
    return CacheReport(cached.resets, list(cached.served.changes()), found, shared)
