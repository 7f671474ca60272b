"""Step reports: the engine's state after each iteration, sent to the sidecar."""

import uuid
from typing import NamedTuple, Protocol

from penstock_core.domain.served_prompts import IDLE_IN_TURN, IN_TURN
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork
from penstock_proto.telemetry_pb2 import Drafting, StepReport

from penstock_simulator.engine.cached_kv import CachedKv
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.iteration import Iteration


class MeasuredIteration(NamedTuple):
    """The work of an iteration that has ended, and its measured duration."""

    work: BatchWork
    duration_s: float


class ReportSink(Protocol):
    """Takes reports, such as a `ReportSocket`. lost: reports that were not sent."""

    lost: int

    def send(self, report: StepReport) -> bool:
        """Send a report, or drop it. Return whether it was sent. Never waits."""


class StepReportSender:
    """Numbers step reports and sends them, with an instance id by which the sidecar detects a restart.

    reports: the sidecar's socket; None sends nothing.
    checks_tickets: whether the engine reads SLO fields from tickets only.
    """

    def __init__(self, reports: ReportSink | None, *, checks_tickets: bool = False) -> None:
        self._reports, self._checks_tickets = reports, checks_tickets
        self._instance = uuid.uuid4().hex
        self._sequence = 0

    @property
    def lost(self) -> int:
        """Number of reports that could not be sent."""
        return self._reports.lost if self._reports is not None else 0

    def send(
        self,
        state: EngineState,
        ended: MeasuredIteration | None,
        started: Iteration,
        next_duration_s: float,
        speculation: Speculation | None = None,
    ) -> None:
        """Report the iteration that has ended, the one that has started, and all requests.

        next_duration_s: predicted duration of the one that has started.
        speculation: the engine's speculation settings with the measured acceptance rate.
        """
        if self._reports is None:
            return
        self._sequence += 1
        report = self._report(state, ended, started, next_duration_s)
        if speculation is not None:
            report.drafting.CopyFrom(_drafting(speculation))
        if state.cached is not None:
            _add_prefixes(report, state.cached, state)
        self._reports.send(report)

    def _report(
        self, state: EngineState, ended: MeasuredIteration | None, started: Iteration, next_duration_s: float
    ) -> StepReport:
        running, waiting = state.running, state.waiting
        jobs = (*running, *waiting)
        ids = [job.request.id for job in jobs]
        work, duration_s = ended or MeasuredIteration(BatchWork(0), 0.0)
        chunks, finished_thinking_tokens = started.chunks(), state.finished_thinking_tokens
        return StepReport(
            sequence=self._sequence,
            engine_instance=self._instance,
            duration_s=duration_s,
            tokens=work.tokens,
            context_tokens=work.context_tokens,
            prefill_work=work.prefill_work,
            spec_steps=work.spec_steps,
            next_duration_s=next_duration_s,
            prefilling=[row for row, job_id in enumerate(ids) if job_id in chunks] if chunks else (),
            chunk_tokens=[chunks[job_id] for job_id in ids if job_id in chunks] if chunks else (),
            kv_blocks_total=state.total_blocks,
            kv_blocks_free=state.free_blocks,
            block_tokens=state.block_tokens,
            running=len(running),
            request_ids=ids,
            computed_tokens=[job.computed_tokens if job.unheld_blocks is None else 0 for job in jobs],
            generated_tokens=[job.generated_tokens for job in jobs],
            best_effort=[job.best_effort for job in jobs],
            preemptions=state.preemptions,
            waiting=len(waiting),
            thinking_tokens=[finished_thinking_tokens.get(job_id, 0) for job_id in ids]
            if finished_thinking_tokens
            else (),
            checks_tickets=self._checks_tickets,
        )


def _add_prefixes(report: StepReport, cached: CachedKv, state: EngineState) -> None:
    """Add cached tokens of waiting requests and of prompts served before, and shared blocks."""
    waiting, shared = state.waiting, state.shared_prefixes
    report.caches_prefixes, report.cache_resets = True, cached.resets
    if any([job.unheld_blocks is not None for job in waiting]):
        report.cached_tokens.extend([job.computed_tokens for job in waiting])
        report.unheld_blocks.extend([job.unheld_blocks or 0 for job in waiting])
    for prompt in cached.served.changes(IN_TURN if report.running or report.waiting else IDLE_IN_TURN):
        report.cached_prompts.add(**prompt._asdict())
    if shared is not None and shared.ids:
        rows = {request_id: row for row, request_id in enumerate(report.request_ids)}
        report.sharing.extend([rows[request_id] for request_id in shared.ids])
        report.common_blocks.extend(shared.common_blocks)


def _drafting(speculation: Speculation) -> Drafting:
    return Drafting(
        max_tokens=speculation.max_tokens, acceptance=speculation.acceptance, by_tier=speculation.by_tier
    )
