"""The sidecar's model of its replica: accepted requests, and the engine's latest report of them.

Admission plans with a `ReplicaView`. Reports are the exact state of the requests in the engine. But a request
is accepted shortly before a report contains it, and its last bytes are read shortly after the last report
with it. So the mirror keeps accepted requests in addition to the latest report:

- accepted and never reported: it waits in the engine, after all others that wait;
- in the latest report: as reported, in the engine's own order;
- prefilled in the current iteration: as it will be after the iteration;
- reported earlier but not in the latest report: it has ended in the engine, so it takes no resources, though
  bytes are still being read;
- in the report but not accepted here: sent without this sidecar. It takes memory and time, so plans include
  it.

Each report is the whole state, so after a lost report the state is only older. Without reports, progress is
inferred from the tokens that are forwarded: a request with output is running with its whole prompt in memory,
others are waiting. That overestimates the remaining work, which is safe.

An engine that speculates generates several tokens of a request at once, and a thinking model's answer has a
separate TPOT target once the thinking has ended. Reports show both, and the acceptance rate. Without reports
the acceptance rate is the pool's, and forwarded tokens show the end of thinking.

All times are arguments, on the caller's clock.
"""

from collections.abc import Callable, Iterator

from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView, at_iteration_end
from penstock_core.domain.request import (
    Job,
    RequestId,
    advance,
    after_each,
    with_cached_prefix,
)
from penstock_core.domain.shared_prefixes import SharedPrefixes
from penstock_core.forecast.overdue import Signs
from penstock_core.forecast.snapshot import Snapshot, snapshot
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.step_tail import step_end_s
from penstock_core.timing.time_model import BatchWork, TimeModel
from penstock_proto.sse import EngineUsage
from penstock_proto.telemetry_pb2 import StepReport
from penstock_runtime.prompt_marks import PromptMarks

from penstock_sidecar.mirror.decode_steps import MOST_STEPS, DecodeRows
from penstock_sidecar.mirror.mirrored_job import MirroredJob
from penstock_sidecar.mirror.prefix_index import PrefixIndex, SharedPrefix
from penstock_sidecar.mirror.report_rows import Row, chunks_of, rows_of, shared_of, speculation_of
from penstock_sidecar.mirror.reported_job import foreign_job, with_longer_prediction, without_cached_prefix


class ReplicaMirror:
    """The requests of this replica and their progress.

    kv: the KV cache until a report has its state.
    limits: the pool's limits. Lower limits of the engine replace them.
    longer: returns a new predicted length for a job that has exceeded its prediction.
    silence_s: longest silence of a working engine before progress is inferred.
    speculation: the engine's speculation until a report has it; None if it does not speculate.
    last_received_s: when a report or output was last received from the engine.
    prefixes: this replica's prompts and what the engine has cached of them.
    checks_tickets: whether the engine reads SLO fields only from tickets.
    """

    def __init__(
        self,
        kv: KvCache,
        limits: Limits,
        longer: Callable[[Job], int],
        silence_s: float = 2.0,
        speculation: Speculation | None = None,
    ) -> None:
        self._kv, self._longer, self._silence_s = kv, longer, silence_s
        self._pool_limits = self._limits = limits
        self._speculation = speculation
        self.prefixes = PrefixIndex()
        self._accepted: dict[RequestId, MirroredJob] = {}
        self._reports = 0
        self._running: list[MirroredJob] = []
        self._waiting: list[MirroredJob] = []
        self._coming: list[MirroredJob] = []  # accepted since the last report
        self._chunks: dict[RequestId, int] = {}
        self._shared: SharedPrefixes | None = None  # of the last report
        self._decodes: DecodeRows | None = None  # of the last report, if the next one may only add decodes
        self._decode_ends_s: list[float] = []  # ends of decode steps that are not yet applied to jobs
        self.last_received_s = float("-inf")
        self._synced_s = float("-inf")  # when the mirror last agreed with the engine
        self._busy_until_s, self._step_s = float("-inf"), 0.0  # end and duration of the step in progress
        self._live, self._lists_all_waiting = False, True
        self.checks_tickets = False
        self._snapshot: Snapshot | None = None

    @property
    def live(self) -> bool:
        """Whether reports are current, as of the last `check`."""
        return self._live

    @property
    def kv_tokens_total(self) -> int:
        """Tokens that the KV cache holds."""
        return self._kv.total_blocks * self._kv.block_tokens

    def accept(self, job: Job, now_s: float, prompt_known: bool = False, timed: bool = False) -> None:
        """Add an accepted job, which is sent to the engine.

        prompt_known: whether its prompt was counted, not estimated. timed: whether `token_times_s` will be
            called.
        """
        if not self._accepted:
            self._synced_s = max(self._synced_s, now_s)  # an idle engine sends no report
        times_s: list[float] | None = [] if timed else None
        found = MirroredJob(job, prompt_known=prompt_known, times_s=times_s, progressed_s=now_s)
        self._accepted[job.request.id] = found
        if self._live and self._busy_until_s <= now_s:
            found.planned_s = now_s
        elif self._live:
            self._coming.append(found)
        self._snapshot = None

    @property
    def _knows_cache(self) -> bool:
        """Whether `prefixes` is current."""
        return self._live

    def candidate(self, job: Job, marks: PromptMarks) -> Job:
        """Return a new job as admission plans it, with the cached tokens of its prompt as computed."""
        job, found = without_cached_prefix(job), self.prefixes.longest(marks) if self._knows_cache else None
        if found is None:
            return job
        cached_tokens = min(self._cached_tokens(found, marks), job.request.prompt_tokens - 1)
        blocks = cached_tokens // self._kv.block_tokens
        held = found.held_tokens // self._kv.block_tokens if self._is_running(found.request_id) else 0
        holder = found.request_id if held else None
        return with_cached_prefix(job, blocks * self._kv.block_tokens, max(blocks - held, 0), holder)

    def _is_running(self, request_id: RequestId) -> bool:
        """Return whether a request holds its blocks, as of the last report."""
        found = self._accepted.get(request_id)
        return found is not None and found.last_running_report == self._reports

    def _cached_tokens(self, found: SharedPrefix, marks: PromptMarks) -> int:
        """Return the cached tokens of a prompt. found: its longest known prefix."""
        return found.cached_tokens

    def prompt_sent(self, request_id: RequestId, marks: PromptMarks) -> None:
        """Add an accepted request's prompt."""
        self.prefixes.add(request_id, marks)

    def answered(self, request_id: RequestId, usage: EngineUsage) -> None:
        """Ignore the engine's counts of a complete answer, because reports contain more."""

    def forget(self, request_id: RequestId) -> Job | None:
        """Remove a job that has ended. Return its last state."""
        self._apply_decode_steps()
        self._decodes = None
        found = self._accepted.pop(request_id, None)
        self._snapshot = None
        return found.job if found else None

    def computes(self, request_id: RequestId, shows_output: bool) -> bool:
        """Return whether the engine has probably begun a job.

        Reports show it. Without reports output shows it, if the answer `shows_output` as it is generated;
        otherwise the job is assumed to have begun.
        """
        found = self._accepted.get(request_id)
        if found is None:
            return False
        if self._live:
            return self._is_running(request_id) or found.job.generated_tokens > 0
        return not shows_output or found.job.generated_tokens > 0

    def signs(self, request_id: RequestId, shows_output: bool) -> Signs | None:
        """Return the latest signs of progress of a job at the engine; None for an unknown one.

        shows_output: whether its answer passes this sidecar as it is generated.
        """
        self._apply_decode_steps()
        found = self._accepted.get(request_id)
        if found is None:
            return None
        if self._live:
            where = found.where_reported(self._reports, lists_all_waiting=self._lists_all_waiting)
        else:
            where = found.where_inferred(shows_output=shows_output)
        return Signs(where, found.progressed_s, self.last_received_s)

    def delivery_s(self, request_id: RequestId, shown_s: float) -> float | None:
        """Return the time that a job took outside of iterations (`MirroredJob.delivery_s`)."""
        found = self._accepted.get(request_id)
        return None if found is None else found.delivery_s(shown_s)

    def passed(self, request_id: RequestId, tokens: int, now_s: float) -> None:
        """Record tokens of a job that were forwarded to its client."""
        self.last_received_s = now_s
        found = self._accepted.get(request_id)
        if found is None:
            return
        found.passed_tokens += tokens
        found.progressed_s = now_s
        if self._live:
            return
        job = found.job
        new_tokens = found.passed_tokens - job.generated_tokens
        if new_tokens > 0:
            job = advance(job, job.pending_tokens + new_tokens - 1, new_tokens, now_s)
            found.job = with_longer_prediction(job, self._longer)
            self._snapshot = None

    def tokens_out(self, request_id: RequestId) -> int:
        """Return a job's tokens as a speculating engine reports them; 0 for other engines.

        One event of a speculating engine may have several tokens.
        """
        found = self._accepted.get(request_id)
        reported = found is not None and self._live and self._speculation is not None
        if reported:
            self._apply_decode_steps()
        return found.job.generated_tokens if found is not None and reported else 0

    def token_times_s(self, request_id: RequestId, tokens: int, ended_s: float) -> list[float]:
        """Return when each token of a complete answer was generated; empty if that was not reported.

        The tokens of the last iteration are in no report, so their time is `ended_s`.
        """
        self._apply_decode_steps()
        found = self._accepted.get(request_id)
        if found is None or found.times_s is None or not self._live:
            return []
        if not found.times_s and tokens > 1:
            return []
        seen_s = found.times_s[:tokens]
        return seen_s + [ended_s] * (tokens - len(seen_s))

    def thinking_ended(self, request_id: RequestId, thinking_tokens: int, now_s: float) -> None:
        """Record that a job's thinking has ended by its forwarded tokens, unless a report has shown it."""
        self._apply_decode_steps()
        found = self._accepted.get(request_id)
        if found is not None and not found.thinking_tokens:
            found.end_thinking(thinking_tokens, now_s)
            self._snapshot = None

    def thinking_tokens(self, request_id: RequestId) -> int:
        """Return the length of a job's thinking; 0 until the thinking has ended."""
        found = self._accepted.get(request_id)
        return found.thinking_tokens if found else 0

    def apply(self, report: StepReport, now_s: float) -> list[tuple[RequestId, int]]:
        """Apply a report. Return jobs whose exact prompt length it shows, with the length."""
        self._live, self._snapshot = True, None
        self.checks_tickets = report.checks_tickets
        self.last_received_s = self._synced_s = now_s
        self._step_s = report.next_duration_s
        self._busy_until_s = now_s + self._step_s
        for found in self._coming:
            found.planned_s = now_s
        self._coming.clear()
        if report.kv_blocks_total:
            self._kv = KvCache(report.kv_blocks_total, report.kv_blocks_free, report.block_tokens)
        if report.most_running:
            self._limits = _within(self._pool_limits, report)
        if report.HasField("drafting"):
            self._speculation = speculation_of(report.drafting)
        decodes = DecodeRows.of(report)
        if self._only_decoded(decodes):
            self._decodes = decodes
            self._decode_ends_s.append(now_s)
            return []
        self._apply_decode_steps()
        self._reports += 1
        rows = [self._row(row, now_s) for row in rows_of(report)]
        self._running, self._waiting = rows[: report.running], rows[report.running :]
        for found in self._running:
            found.last_running_report = self._reports
        self._chunks, self._shared = chunks_of(report), shared_of(report)
        own = all([row.prompt_known and row.job.request.id in self._accepted for row in rows])
        self._decodes = decodes if own else None
        self._lists_all_waiting = report.waiting <= len(self._waiting)
        if not self._lists_all_waiting:
            self._assume_unlisted_wait()
        return list(self._revealed())

    def check(self, now_s: float) -> bool:
        """Return whether reports are current. Drops them after too long a silence of a working engine."""
        due_s = max(self._synced_s, self._busy_until_s) + self._silence_s
        if self._live and now_s > due_s and any(map(self._is_in_engine, self._accepted.values())):
            self.lose_reports()
        return self._live

    def lose_reports(self) -> None:
        """Drop the last report, because the engine was lost or is silent."""
        self._apply_decode_steps()
        self._decodes = None
        self._live, self._snapshot, self._shared = False, None, None
        self._coming.clear()
        self._running, self._waiting, self._chunks = [], [], {}
        self._busy_until_s, self._step_s = float("-inf"), 0.0
        self.prefixes.forget_cached()
        for found in self._accepted.values():
            found.job = without_cached_prefix(found.job)

    def view(self, now_s: float, model: TimeModel) -> ReplicaView:
        """Return the replica as admission plans with it."""
        self.check(now_s)
        self._apply_decode_steps()
        running, waiting = self._running_and_waiting()
        free = self._kv.free_blocks if self._live else self._blocks_left(running)
        kv = KvCache(self._kv.total_blocks, free, self._kv.block_tokens)
        view = ReplicaView(
            now_s=now_s,
            busy_until_s=self._busy_until(now_s, running, model),
            running=running,
            waiting=waiting,
            kv=kv if self._shared is None else kv.with_shared_prefixes(self._shared),
            limits=self._limits,
            model=model,
            speculation=self._speculation,
        )
        return at_iteration_end(view, self._chunks)

    def snapshot(self, now_s: float, model: TimeModel) -> Snapshot:
        """Return the load as of the last change. It is computed once after each change."""
        if self._snapshot is None:
            self._snapshot = snapshot(self.view(now_s, model))
        return self._snapshot

    def _only_decoded(self, decodes: DecodeRows | None) -> bool:
        """Return whether a report's rows are the last report's rows after a decode step."""
        last = self._decodes
        if last is None or decodes is None or len(self._decode_ends_s) >= MOST_STEPS:
            return False
        return decodes == last.after_one_step()

    def _apply_decode_steps(self) -> None:
        """Advance jobs by the recorded decode steps."""
        ends_s = self._decode_ends_s
        if not ends_s:
            return
        running, self._decode_ends_s = self._running, []
        for found, job in zip(running, after_each([one.job for one in running], ends_s), strict=True):
            found.job = with_longer_prediction(job, self._longer)
            found.progressed_s = max(found.progressed_s, ends_s[-1])
            if found.times_s is not None:
                found.times_s += ends_s

    def _running_and_waiting(self) -> tuple[tuple[Job, ...], tuple[Job, ...]]:
        accepted = self._accepted.values()
        if not self._live:
            jobs = [found.job for found in accepted]
            return (
                tuple(job for job in jobs if job.generated_tokens),
                tuple(job for job in jobs if not job.generated_tokens),
            )
        unreported = [found.job for found in accepted if not found.last_report]
        running, waiting = ([row.job for row in rows] for rows in (self._running, self._waiting))
        return tuple(running), (*waiting, *unreported)

    def _is_in_engine(self, found: MirroredJob) -> bool:
        return not self._live or found.last_report in (0, self._reports)

    def _assume_unlisted_wait(self) -> None:
        """Treat jobs that are missing in the report as waiting, because it does not list all waiting ones.

        When they reach the engine is not known then.
        """
        for found in self._accepted.values():
            if found.last_report < self._reports:
                found.last_report = 0
                found.planned_s = None if found.reached_s is None else found.planned_s

    def _row(self, row: Row, now_s: float) -> MirroredJob:
        found = self._accepted.get(row.request_id)
        if found is None:
            return MirroredJob(foreign_job(row, now_s), last_report=self._reports, prompt_known=True)
        found.report(row, self._reports, now_s, self._longer)
        return found

    def _revealed(self) -> Iterator[tuple[RequestId, int]]:
        for found in self._running:
            if not found.prompt_known and found.job.generated_tokens:
                yield found.job.request.id, found.reveal_prompt()

    def _blocks_left(self, running: tuple[Job, ...]) -> int:
        used = sum(self._kv.blocks_for(job.computed_tokens + 1) for job in running)
        return max(self._kv.total_blocks - used, 0)

    def _busy_until(self, now_s: float, running: tuple[Job, ...], model: TimeModel) -> float:
        if self._live or not running:
            return max(step_end_s(self._busy_until_s, self._step_s, model.slow_excess, now_s), now_s)
        context_tokens = sum(job.computed_tokens for job in running)
        drafts = self._speculation.max_tokens if self._speculation is not None else 0
        work = BatchWork(len(running) * (1 + drafts), context_tokens, spec_steps=drafts)
        return now_s + model.seconds(work)


def _within(allowed: Limits, report: StepReport) -> Limits:
    """Return the lower of the pool's limits and the engine's."""
    return Limits(
        min(allowed.batch_tokens, report.most_batch_tokens), min(allowed.running, report.most_running)
    )
