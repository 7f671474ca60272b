"""Sends the engine's state as step reports, as steps begin.

A report has the data for the sidecar's model of the engine: the measured step that has ended; the planned
step that begins; memory; and the state of every request in between. With asynchronous scheduling, steps in
progress count as begun: requests are reported in their last known state, together with the prefills of those
steps.

Most steps generate one token of every running request. Then a report has the number of tokens since an
earlier report with all requests, instead of the requests. The earlier report must have been received, and is
at most `WHOLE_EVERY_S` old.

The engine's own thread only records the state (`BoundaryRecorder`). Another thread (`report_thread`) makes
and sends the reports, while the engine waits for its device.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple, Protocol

from penstock_core.domain.request import Job
from penstock_core.domain.served_prompts import IDLE_IN_TURN, CachedPrompt
from penstock_core.domain.shared_prefixes import SharedPrefixes
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork
from penstock_proto.report_socket import ReportSocket
from penstock_proto.telemetry import Drafting, PolicyFaults, StepReport

from penstock_vllm.ledger import EngineLedger, HeldRequest
from penstock_vllm.pipeline import MeasuredStep
from penstock_vllm.reported_prompts import ReportedPrompts
from penstock_vllm.step_in_progress import StepInProgress
from penstock_vllm.view import KvMemory, StepBounds

WHOLE_EVERY_S = 5.0
"""Longest time between reports with all requests. A new reader, or one that missed a report, gets one
immediately; this bound corrects undetected losses.
"""

MOST_QUEUED = 64
"""Most boundaries that wait to be reported: two seconds of steps."""

NEVER = -1
"""A count of changes that differs from all others."""

NO_STEP = MeasuredStep(BatchWork(0), 0.0)


class ReportRows(NamedTuple):
    """All requests at a boundary.

    jobs: running ones in the order they were started, then waiting ones.
    chunks: tokens that the steps in progress prefill, by index of the job.
    """

    jobs: Sequence[Job]
    chunks: Mapping[int, int]


class CacheReport(NamedTuple):
    """The prefix cache at a step boundary.

    resets: number since the engine started. prompts: those that may have changed.
    waiting: cached tokens of the first waiting requests, and how many of their blocks no request holds.
    shared: common prefixes of requests.
    """

    resets: int
    prompts: Sequence[CachedPrompt]
    waiting: Sequence[tuple[int, int]]
    shared: SharedPrefixes = SharedPrefixes()


class Boundary(NamedTuple):
    """The engine between two steps. Immutable.

    ended: the step that has ended since the last boundary, if any.
    running, waiting: numbers of requests. preemptions: number since the engine started.
    left_s: predicted time until the steps in progress have ended.
    faults: steps in which the policy failed, by kind, since the engine started.
    changes, uniform_steps: the ledger's counts. rows: None if only `uniform_steps` has grown since they were
        last reported.
    cache: report of the prefix cache; None if it is not looked up.
    """

    ended: MeasuredStep | None
    running: int
    waiting: int
    preemptions: int
    memory: KvMemory
    left_s: float
    speculation: Speculation | None
    faults: Mapping[str, int]
    changes: int
    uniform_steps: int
    rows: ReportRows | None
    cache: CacheReport | None = None


class UniformBoundary(NamedTuple):
    """A boundary that differs from the previous one only in these fields, which is the most frequent case."""

    ended: MeasuredStep | None
    memory: KvMemory
    left_s: float
    uniform_steps: int
    cache: CacheReport | None = None


class Base(NamedTuple):
    """A received report with all requests: its number, and the ledger's counts then."""

    sequence: int
    changes: int
    uniform_steps: int


NO_REPORT = Boundary(None, 0, 0, 0, KvMemory(0, 0, 1), 0.0, None, {}, NEVER, 0, None)
"""The base before the first report."""


class Reports:
    """Makes, numbers and sends reports. A new instance name tells the sidecar that the engine is new.

    checks_tickets: whether SLO fields count in a ticket only.
    broken: whether a report with all requests is needed before the next report that refers to one.
    """

    def __init__(
        self, socket: ReportSocket, bounds: StepBounds | None = None, checks_tickets: bool = False
    ) -> None:
        self._socket, self._bounds, self._checks_tickets = socket, bounds, checks_tickets
        self._instance = uuid.uuid4().hex
        self._last = StepReport(engine_instance=self._instance)
        self._reported = NO_REPORT
        self._base: Base | None = None
        self._prompts = ReportedPrompts()
        self._cache_resets: int | None = None  # None until it is known that there is a cache
        self.broken = False

    @property
    def lost(self) -> int:
        """Return the number of reports that were not received."""
        return self._socket.lost

    def send(self, boundary: Boundary | UniformBoundary, skipped: int = 0) -> None:
        """Report a step boundary. skipped: earlier boundaries without a report."""
        now = self._boundary_of(boundary)
        sequence, base = self._last.sequence + skipped + 1, self._base
        report = report_of(now)
        report.sequence, report.engine_instance = sequence, self._instance
        if self._checks_tickets:
            report.checks_tickets = True
        if self._bounds is not None:
            report.most_batch_tokens, report.most_running = self._bounds[:2]
        if skipped:
            self._prompts.forget()
        if now.cache is not None:
            self._cache_resets = now.cache.resets
            self._prompts.record(now.cache.resets, now.cache.prompts)
            _add_prompts(report, now.cache.prompts)
        if self._cache_resets is not None:  # also where the cache has not changed
            report.caches_prefixes, report.cache_resets = True, self._cache_resets
        if now.rows is not None:
            _add_requests(report, now.rows)
            _add_waiting(report, now)
            _add_shared(report, now)
        elif base is not None and base.changes == now.changes:
            report.since, report.further_tokens = base.sequence, now.uniform_steps - base.uniform_steps
        else:
            self._last.sequence = sequence
            self.broken = True
            return
        self._last = report
        taken = self._socket.send(report)
        if not taken:
            self._base, self.broken = None, True
        elif now.rows is not None:
            self._base = Base(sequence, now.changes, now.uniform_steps)

    def _boundary_of(self, boundary: Boundary | UniformBoundary) -> Boundary:
        if isinstance(boundary, UniformBoundary):
            ended, memory, left_s, uniform_steps, cache = boundary
            boundary = self._reported._replace(
                ended=ended, memory=memory, left_s=left_s, uniform_steps=uniform_steps, rows=None, cache=cache
            )
        self._reported = boundary
        return boundary

    def record_loss(self) -> None:
        """Count a report that could not be made or sent. The next one has all requests."""
        self._last.sequence += 1
        self._prompts.forget()
        self._base, self.broken = None, True

    def repeat(self) -> None:
        """Repeat the state of an idle engine, for a sidecar that has just started or has missed a report."""
        if self._last.kv_blocks_total and not self._last.next_duration_s:
            self._last.sequence += 1
            self._last.duration_s = 0.0
            del self._last.cached_prompts[:]
            _add_prompts(self._last, self._prompts.next(IDLE_IN_TURN))
            self._base = None
            self._socket.send(self._last)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class BoundaryQueue(Protocol):
    """A queue shared by threads."""

    def qsize(self) -> int: ...  # noqa: D102
    def put(self, item: Boundary | UniformBoundary) -> None: ...  # noqa: D102


class BoundaryRecorder:
    """Records boundaries on the engine's thread: one small object, with the requests only if necessary.

    queue: boundaries to report. skipped: boundaries for which it was full.
    """

    def __init__(self, reports: Reports, queue: BoundaryQueue) -> None:
        self._reports, self._queue = reports, queue
        self._changes, self._reported_s = NEVER, -inf
        self.skipped = 0

    def knows(self, changes: int, steps: Iterable[StepInProgress], now_s: float) -> bool:
        """Return whether the last reported requests are still correct, apart from one token each per step.

        changes: the ledger's count. steps: the steps in progress.
        """
        if changes != self._changes or now_s - self._reported_s >= WHOLE_EVERY_S or self._reports.broken:
            return False
        return not any([step.chunks for step in steps])

    def repeat(self, changes: int, now: UniformBoundary, now_s: float) -> bool:
        """Queue a uniform boundary. Returns False if a complete one is needed."""
        due = changes != self._changes or now_s - self._reported_s >= WHOLE_EVERY_S or self._reports.broken
        if due or self._queue.qsize() >= MOST_QUEUED:
            return False
        self._queue.put(now)
        return True

    def record(self, now: Boundary, now_s: float) -> None:
        """Queue a complete boundary."""
        if now.rows is not None:
            self._changes, self._reported_s, self._reports.broken = now.changes, now_s, False
        if self._queue.qsize() < MOST_QUEUED:
            self._queue.put(now)
        else:
            self._changes = NEVER
            self.skipped += 1


def rows_of(
    running: Sequence[HeldRequest], ledger: EngineLedger, steps: Iterable[StepInProgress]
) -> ReportRows:
    """Return all requests in their last known state, and the prefills of the steps in progress."""
    ledger.settle()
    chunks: dict[str, int] = {}
    for step in steps:
        for engine_id, tokens in step.chunks.items():
            chunks[engine_id] = chunks.get(engine_id, 0) + tokens
    ids = [held.request.request_id for held in running] if chunks else ()
    return ReportRows(
        [held.job for held in (*running, *ledger.waiting)],
        {row: chunks[engine_id] for row, engine_id in enumerate(ids) if engine_id in chunks},
    )


def report_of(now: Boundary) -> StepReport:
    """Return the report of a step boundary, without its number and without the requests."""
    work, duration_s = now.ended or NO_STEP
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
        running=now.running,
        preemptions=now.preemptions,
        waiting=now.waiting,
    )
    if now.faults:
        report.policy_faults.CopyFrom(PolicyFaults(**now.faults))
    if now.speculation is not None:
        report.drafting.CopyFrom(_drafting(now.speculation))
    return report


def _add_requests(report: StepReport, rows: ReportRows) -> None:
    jobs, chunks = rows
    # Fields by index, which is faster: request, computed_tokens, generated_tokens, best_effort.
    report.request_ids.extend([job[0].id for job in jobs])
    report.computed_tokens.extend([job[1] for job in jobs])
    report.generated_tokens.extend([job[2] for job in jobs])
    report.best_effort.extend([job[7] for job in jobs])
    report.prefilling.extend(chunks)
    report.chunk_tokens.extend(chunks.values())


def _add_prompts(report: StepReport, prompts: Iterable[CachedPrompt]) -> None:
    for prompt in prompts:
        report.cached_prompts.add(**prompt._asdict())


def _add_waiting(report: StepReport, now: Boundary) -> None:
    """Add the cached tokens of the first waiting requests."""
    found = now.cache.waiting if now.cache is not None else ()
    if any([tokens for tokens, _ in found]):
        report.cached_tokens.extend([tokens for tokens, _ in found])
        report.unheld_blocks.extend([unheld for _, unheld in found])


def _add_shared(report: StepReport, now: Boundary) -> None:
    """Add the rows with common leading blocks."""
    shared = now.cache.shared if now.cache is not None else SharedPrefixes()
    if shared.ids:
        rows = {request_id: row for row, request_id in enumerate(report.request_ids)}
        report.sharing.extend([rows.get(request_id, len(rows)) for request_id in shared.ids])
        report.common_blocks.extend(shared.common_blocks)


def _drafting(speculation: Speculation) -> Drafting:
    return Drafting(
        max_tokens=speculation.max_tokens, acceptance=speculation.acceptance, by_tier=speculation.by_tier
    )
