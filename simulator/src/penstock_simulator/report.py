"""The engine's state as a step report."""

import uuid
from typing import NamedTuple

from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork
from penstock_proto.report_socket import ReportSocket
from penstock_proto.telemetry_pb2 import Drafting, StepReport

from penstock_simulator.engine_state import EngineState
from penstock_simulator.iteration import Iteration


class Measured(NamedTuple):
    """An iteration that has ended: what it computed, and how long that took by the clock."""

    work: BatchWork
    duration_s: float


class StateReports:
    """Numbers reports and sends them. A new instance name tells the sidecar that the engine is a new one.

    reports: None where nobody is to be told.
    """

    def __init__(self, reports: ReportSocket | None) -> None:
        self._reports = reports
        self._instance = uuid.uuid4().hex
        self._sequence = 0

    @property
    def lost(self) -> int:
        """Reports that nobody took."""
        return self._reports.lost if self._reports is not None else 0

    def send(
        self,
        state: EngineState,
        ended: Measured | None,
        started: Iteration,
        next_duration_s: float,
        speculation: Speculation | None = None,
    ) -> None:
        """Report an iteration boundary: what has ended, what has been started, who is there.

        speculation: what the engine drafts, as it has measured that.
        """
        if self._reports is None:
            return
        self._sequence += 1
        report = self._report(state, ended, started, next_duration_s)
        if speculation is not None:
            report.drafting.CopyFrom(_drafting(speculation))
        self._reports.send(report)

    def _report(
        self, state: EngineState, ended: Measured | None, started: Iteration, next_duration_s: float
    ) -> StepReport:
        running, waiting = state.running, state.waiting
        jobs = (*running, *waiting)
        ids = [job.request.id for job in jobs]
        work, duration_s = ended or Measured(BatchWork(0), 0.0)
        chunks, thought = started.chunks(), state.thought
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
            computed_tokens=[job.computed_tokens for job in jobs],
            generated_tokens=[job.generated_tokens for job in jobs],
            best_effort=[job.best_effort for job in jobs],
            preemptions=state.preemptions,
            waiting=len(waiting),
            thinking_tokens=[thought.get(job_id, 0) for job_id in ids] if thought else (),
        )


def _drafting(speculation: Speculation) -> Drafting:
    return Drafting(
        max_tokens=speculation.max_tokens, acceptance=speculation.acceptance, by_tier=speculation.by_tier
    )
