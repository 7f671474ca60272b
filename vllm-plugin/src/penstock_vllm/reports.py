"""The engine's state as step reports, sent as steps begin.

A report has what the sidecar's mirror needs: the step that has ended, as measured; the one that begins, as
planned; memory; and every request as it stands between the two. Where vLLM schedules asynchronously, steps
under way count as begun: requests are reported as known, and what those steps prefill beside them.

An idle engine repeats its last report every `HEARTBEAT_S`, from a thread of its own, so that a sidecar that
has just started learns of it.
"""

import threading
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock_core.speculation import Speculation
from penstock_core.time_model import BatchWork
from penstock_proto.telemetry import Drafting, StepReport

from penstock_vllm.ledger import Held
from penstock_vllm.report_socket import ReportSocket
from penstock_vllm.under_way import UnderWay
from penstock_vllm.view import Bounds, Memory

HEARTBEAT_S = 1.0


class Measured(NamedTuple):
    """A step that has ended: what it computed, and how long that took by the clock."""

    work: BatchWork
    duration_s: float


NOTHING = Measured(BatchWork(0), 0.0)


class Standing(NamedTuple):
    """The engine between two steps.

    running, waiting: who holds KV, in the order they were started, and who holds none.
    left_s: predicted time until the steps under way have ended.
    """

    running: Sequence[Held]
    waiting: Sequence[Held]
    memory: Memory
    steps: Iterable[UnderWay]
    left_s: float
    speculation: Speculation | None
    preemptions: int


class Reports:
    """Numbers reports and sends them. A new instance name tells the sidecar that the engine is a new one."""

    def __init__(self, socket: ReportSocket, bounds: Bounds | None = None) -> None:
        self._socket, self._bounds = socket, bounds
        self._instance = uuid.uuid4().hex
        self._last = StepReport(engine_instance=self._instance)
        self._quiet = True
        self._lock = threading.Lock()

    @property
    def lost(self) -> int:
        """Reports that nobody took."""
        return self._socket.lost

    def send(self, ended: Measured | None, now: Standing) -> None:
        """Report a step boundary."""
        report = report_of(ended or NOTHING, now)
        if self._bounds is not None:
            report.most_batch_tokens, report.most_running = self._bounds[:2]
        with self._lock:
            report.sequence, report.engine_instance = self._last.sequence + 1, self._instance
            self._last, self._quiet = report, False
            self._socket.send(report)

    def repeat(self) -> None:
        """Say again how an idle engine stands, unless it has spoken since the last time this was asked."""
        with self._lock:
            if self._quiet and self._last.kv_blocks_total and not self._last.next_duration_s:
                self._last.sequence += 1
                self._last.duration_s = 0.0
                self._socket.send(self._last)
            self._quiet = True

    def close(self) -> None:
        """Say no more."""
        with self._lock:
            self._socket.close()


class Heartbeat:
    """Repeats an idle engine's report until it is stopped."""

    def __init__(self, reports: Reports) -> None:
        self._reports, self._stop = reports, threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            self._reports.repeat()


def report_of(ended: Measured, now: Standing) -> StepReport:
    """The report of a step boundary, without its number."""
    rows = [*now.running, *now.waiting]
    jobs = [held.job for held in rows]
    work, duration_s = ended
    memory = now.memory
    report = StepReport(
        duration_s=duration_s,
        tokens=work.tokens,
        context_tokens=work.context_tokens,
        prefill_work=work.prefill_work,
        spec_steps=work.spec_steps,
        next_duration_s=now.left_s,
        kv_blocks_total=memory.total_blocks // memory.groups,
        kv_blocks_free=memory.free_blocks // memory.groups,
        block_tokens=memory.block_tokens,
        running=len(now.running),
        request_ids=[job[0].id for job in jobs],
        computed_tokens=[job[1] for job in jobs],
        generated_tokens=[job[2] for job in jobs],
        best_effort=[job[7] for job in jobs],
        preemptions=now.preemptions,
        waiting=len(now.waiting),
    )
    chunks = _chunks(now.steps)
    if chunks:
        ids = [held.request.request_id for held in now.running]
        report.prefilling.extend([row for row, engine_id in enumerate(ids) if engine_id in chunks])
        report.chunk_tokens.extend([chunks[engine_id] for engine_id in ids if engine_id in chunks])
    if now.speculation is not None:
        report.drafting.CopyFrom(_drafting(now.speculation))
    return report


def _chunks(steps: Iterable[UnderWay]) -> dict[str, int]:
    """What the steps under way prefill, all together."""
    chunks: dict[str, int] = {}
    for step in steps:
        for engine_id, tokens in step.chunks.items():
            chunks[engine_id] = chunks.get(engine_id, 0) + tokens
    return chunks


def _drafting(speculation: Speculation) -> Drafting:
    return Drafting(
        max_tokens=speculation.max_tokens, acceptance=speculation.acceptance, by_tier=speculation.by_tier
    )
