"""The engine's state as step reports, sent as steps begin.

A report has what the sidecar's mirror needs: the step that has ended, as measured; the one that begins, as
planned; memory; and every request as it stands between the two. Where vLLM schedules asynchronously, steps
under way count as begun: requests are reported as known, and what those steps prefill beside them.

Most steps bring one token of everybody who runs. Then a report names an earlier one, which had the requests,
and says how many tokens they are further. It does so only after one that was taken, and not for longer than
`WHOLE_EVERY_S`, so a reader that has missed something soon knows everything again.

An idle engine repeats its last report every `HEARTBEAT_S`, from a thread of its own, so that a sidecar that
has just started learns of it.
"""

import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock_core.speculation import Speculation
from penstock_core.time_model import BatchWork
from penstock_proto.report_socket import ReportSocket
from penstock_proto.telemetry import Drafting, PolicyFaults, StepReport

from penstock_vllm.ledger import Held, Ledger
from penstock_vllm.pipeline import Measured
from penstock_vllm.under_way import UnderWay
from penstock_vllm.view import Bounds, Memory

HEARTBEAT_S = 1.0

WHOLE_EVERY_S = 1.0
"""Longest time from one report with all requests to the next."""

NOTHING = Measured(BatchWork(0), 0.0)


class Boundary(NamedTuple):
    """The engine between two steps.

    ended: the step that has ended, where one has since the last boundary.
    running: who holds KV, in the order they were started. ledger: they and all others.
    left_s: predicted time until the steps under way have ended.
    faults: steps in which the policy failed, by how, since the engine started.
    """

    at_s: float
    ended: Measured | None
    running: Sequence[Held]
    ledger: Ledger
    memory: Memory
    steps: Iterable[UnderWay]
    left_s: float
    speculation: Speculation | None
    faults: Mapping[str, int]


class Base(NamedTuple):
    """A report with all requests that was taken: its number and time, and the ledger's counts then."""

    sequence: int
    at_s: float
    turns: int
    moves: int


class Reports:
    """Numbers reports and sends them. A new instance name tells the sidecar that the engine is a new one."""

    def __init__(self, socket: ReportSocket, bounds: Bounds | None = None) -> None:
        self._socket, self._bounds = socket, bounds
        self._instance = uuid.uuid4().hex
        self._last = StepReport(engine_instance=self._instance)
        self._base: Base | None = None
        self._quiet = True
        self._lock = threading.Lock()

    @property
    def lost(self) -> int:
        """Reports that nobody took."""
        return self._socket.lost

    def send(self, now: Boundary) -> None:
        """Report a step boundary."""
        report, ledger = report_of(now), now.ledger
        if self._bounds is not None:
            report.most_batch_tokens, report.most_running = self._bounds[:2]
        with self._lock:
            sequence = self._last.sequence + 1
            report.sequence, report.engine_instance = sequence, self._instance
            base = self._base_for(now)
            if base is not None:
                report.since, report.further_tokens = base.sequence, ledger.moves - base.moves
            else:
                _add_requests(report, now)
            self._last, self._quiet = report, False
            if not self._socket.send(report):
                self._base = None
            elif base is None:
                self._base = Base(sequence, now.at_s, ledger.turns, ledger.moves)

    def repeat(self) -> None:
        """Say again how an idle engine stands, unless it has spoken since the last time this was asked."""
        with self._lock:
            if self._quiet and self._last.kv_blocks_total and not self._last.next_duration_s:
                self._last.sequence += 1
                self._last.duration_s = 0.0
                self._base = None
                self._socket.send(self._last)
            self._quiet = True

    def close(self) -> None:
        """Say no more."""
        with self._lock:
            self._socket.close()

    def _base_for(self, now: Boundary) -> Base | None:
        """The report whose requests these are still, but for the tokens of steps that brought one of each."""
        base, ledger = self._base, now.ledger
        if base is None or ledger.turns != base.turns or now.at_s - base.at_s >= WHOLE_EVERY_S:
            return None
        return None if not now.running or any([step.chunks for step in now.steps]) else base


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


def report_of(now: Boundary) -> StepReport:
    """The report of a step boundary, without its number and without the requests."""
    work, duration_s = now.ended or NOTHING
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
        preemptions=now.ledger.preemptions,
        waiting=len(now.ledger.waiting),
    )
    if now.faults:
        report.policy_faults.CopyFrom(PolicyFaults(**now.faults))
    if now.speculation is not None:
        report.drafting.CopyFrom(_drafting(now.speculation))
    return report


def _add_requests(report: StepReport, now: Boundary) -> None:
    now.ledger.settle()
    jobs = [held.job for held in (*now.running, *now.ledger.waiting)]
    report.request_ids.extend([job[0].id for job in jobs])
    report.computed_tokens.extend([job[1] for job in jobs])
    report.generated_tokens.extend([job[2] for job in jobs])
    report.best_effort.extend([job[7] for job in jobs])
    chunks = _chunks(now.steps)
    if chunks:
        ids = [held.request.request_id for held in now.running]
        report.prefilling.extend([row for row, engine_id in enumerate(ids) if engine_id in chunks])
        report.chunk_tokens.extend([chunks[engine_id] for engine_id in ids if engine_id in chunks])


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
