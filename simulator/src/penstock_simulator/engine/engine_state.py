"""The state of an inference engine that executes a policy's steps: requests, KV blocks, tokens.

An iteration begins with `start` and ends with `finish`. `start` frees the blocks of preempted requests, moves
new requests from waiting to running, and allocates the blocks that the batch needs. `finish` returns the
tokens that the iteration generated. Between the two, requests may arrive and be aborted. An aborted request
frees its blocks immediately and generates nothing.

The engine enforces vLLM's limits. A step that exceeds one (pending tokens, batch tokens, free blocks for new
requests, `max_num_seqs`) raises `InvalidStep` (`step_checks`). If running requests outgrow the KV cache,
which no policy can foresee because answer lengths are unknown, the engine preempts with recompute as vLLM
does (`preemption`). A preempted request keeps its generated tokens and is queued again by its arrival time.

In virtual time a caller may use `repeat_last` instead of `start` for a step that repeats
(`repeated_decodes`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable

from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, RequestId, advance, preempted, promoted, thinking_ended
from penstock_core.timing.acceptance_rate import Drafted
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

from penstock_simulator.engine.iteration import ActiveRequest, Finish, Grant, Iteration, IterationResult
from penstock_simulator.engine.preemption import growth_blocks, preempt_for_growth
from penstock_simulator.engine.repeated_decodes import RepeatedDecodes, repeated_decodes
from penstock_simulator.engine.step_checks import checked_iteration
from penstock_simulator.engine_timing.batch_shape import BatchShape


class NeverFits(Exception):
    """The request needs more KV blocks at its full length than the engine has."""


def no_drafts(drafts: int) -> int:
    """Accept no draft token."""
    return 0


class EngineState:
    """The requests of one engine and the KV blocks that they hold.

    finished_thinking_tokens: thinking tokens of each request that has finished thinking.
    accept: maps a number of draft tokens to the number that the model accepts; the caller seeds it.
    extend_prediction: new predicted length of a job that has reached its prediction; None extends the
        prediction by one token at a time.
    """

    def __init__(
        self,
        kv_tokens: int,
        limits: Limits,
        block_tokens: int = 16,
        accept: Callable[[int], int] = no_drafts,
        extend_prediction: Callable[[Job], int] | None = None,
    ) -> None:
        self.limits = limits
        self.block_tokens = block_tokens
        self.total_blocks = kv_tokens // block_tokens
        self.free_blocks = self.total_blocks
        self.preemptions = 0
        self.finished_thinking_tokens: dict[RequestId, int] = {}
        self._accept, self._extend_prediction = accept, extend_prediction
        self._running: dict[RequestId, ActiveRequest] = {}
        self._waiting: list[ActiveRequest] = []
        self._waiting_ids: dict[RequestId, ActiveRequest] = {}
        self._running_cache: tuple[Job, ...] | None = None  # invalidated by every change
        self._waiting_cache: tuple[Job, ...] | None = None
        self._iteration = Iteration()
        self._repeatable_blocks: int | None = None  # `Step.repeatable_blocks` of the last step
        self._repeated: RepeatedDecodes | None = None

    def __contains__(self, job_id: RequestId) -> bool:
        return job_id in self._running or job_id in self._waiting_ids

    @property
    def _kv(self) -> KvCache:
        return KvCache(self.total_blocks, self.free_blocks, self.block_tokens)

    @property
    def running(self) -> tuple[Job, ...]:
        """Jobs that hold KV blocks, in the order in which they were started."""
        self._apply_repeated()
        if self._running_cache is None:
            self._running_cache = tuple([entry.job for entry in self._running.values()])
        return self._running_cache

    @property
    def waiting(self) -> tuple[Job, ...]:
        """Jobs that hold no KV blocks, in order of arrival."""
        if self._waiting_cache is None:
            self._waiting_cache = tuple([entry.job for entry in self._waiting])
        return self._waiting_cache

    @property
    def running_count(self) -> int:
        """Number of jobs that hold KV blocks."""
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        """Number of jobs that hold none."""
        return len(self._waiting)

    def view(
        self, now_s: float, busy_until_s: float, model: TimeModel, speculation: Speculation | None = None
    ) -> ReplicaView:
        """Return what a policy may read."""
        running, waiting = self.running, self.waiting
        return ReplicaView(now_s, busy_until_s, running, waiting, self._kv, self.limits, model, speculation)

    def lazy_view(
        self, now_s: float, busy_until_s: float, model: TimeModel, speculation: Speculation | None = None
    ) -> Callable[[], ReplicaView]:
        """Return a function that computes the view as of this call; most such views are never read."""
        if self._repeated is None:
            view = self.view(now_s, busy_until_s, model, speculation)
            return lambda: view
        jobs, waiting, kv, limits = self._repeated.lazy_jobs(), self.waiting, self._kv, self.limits
        return lambda: ReplicaView(now_s, busy_until_s, jobs(), waiting, kv, limits, model, speculation)

    def add(self, job: Job, answer_tokens: int, thinking_tokens: int = 0) -> None:
        """Queue a request whose true answer length is `answer_tokens`. Raises NeverFits, ValueError.

        thinking_tokens: how many of them are thinking tokens, which come first.
        """
        if job.request.id in self:
            raise ValueError(f"request {job.request.id} is already here")
        if self._kv.blocks_for(job.request.prompt_tokens + answer_tokens) > self.total_blocks:
            raise NeverFits(job.request.id)
        self._enqueue(ActiveRequest(job, answer_tokens, thinking_tokens))

    def has_room(self, kv_tokens: int) -> bool:
        """Return whether one more request with `kv_tokens` may run: a free slot and enough free blocks."""
        return len(self._running) < self.limits.running and self._kv.blocks_for(kv_tokens) <= self.free_blocks

    def receive(self, job: Job, answer_tokens: int, thinking_tokens: int = 0) -> None:
        """Start a request with KV that another engine computed, between two iterations.

        The caller has checked `has_room`. Raises ValueError.
        """
        if job.request.id in self:
            raise ValueError(f"request {job.request.id} is already here")
        self._stop_repeating()
        entry = ActiveRequest(job, answer_tokens, thinking_tokens, decoding=job.decoding)
        self._running[job.request.id] = entry
        self._running_cache = None
        self._grow(entry, job.computed_tokens)

    def abort(self, job_id: RequestId) -> bool:
        """Remove a request and free its blocks. Returns whether it was here."""
        self._stop_repeating()
        self._running_cache = None
        entry = self._running.pop(job_id, None)
        if entry is None:
            entry = self._dequeue(job_id)
        if entry is None:
            return False
        self._free(entry)
        self.finished_thinking_tokens.pop(job_id, None)
        entry.aborted = True
        return True

    def apply(self, step: Step, now_s: float) -> IterationResult:
        """Run an iteration that ends at `now_s`."""
        self.start(step)
        return self.finish(now_s)

    def start(self, step: Step) -> Iteration:
        """Begin an iteration. Raises InvalidStep, without any change."""
        self._stop_repeating()
        wanted = checked_iteration(step, self._running, self._waiting_ids, self.limits, self._kv)
        for job_id in step.promote:
            entry = self._running.get(job_id) or self._waiting_ids[job_id]
            entry.job = promoted(entry.job)
            self._running_cache = self._waiting_cache = None
        for job_id in step.preempt:
            self._preempt(self._running[job_id])
        iteration, preempted = preempt_for_growth(wanted, tuple(self._running.values()), self._kv)
        for entry in preempted:
            self._preempt(entry)
        for grant in iteration.grants:
            if grant.entry.blocks == 0:
                self._running[grant.entry.job.request.id] = grant.entry
                self._running_cache = None
                self._dequeue(grant.entry.job.request.id)
            self._grow(grant.entry, grant.kv_tokens)
        for entry in iteration.decodes:
            if entry.job.computed_tokens == entry.blocks * self.block_tokens:
                self._grow(entry, entry.job.computed_tokens + 1)
        self._iteration, self._repeatable_blocks = iteration, step.repeatable_blocks
        return iteration

    def repeat_last(self) -> Iteration | None:
        """Begin the last iteration again; None if its step does not repeat or a request has an event."""
        if self._repeated is None and self._repeatable_blocks is not None:
            entries = list(self._running.values())
            self._repeated = repeated_decodes(entries, self._repeatable_blocks, self.block_tokens)
        repeated = self._repeated
        if repeated is None or self._waiting or not repeated.left or self.free_blocks < repeated.least_blocks:
            self._stop_repeating()
            return None
        self.free_blocks -= repeated.begin()
        self._iteration = repeated.iteration
        return self._iteration

    def shape(self) -> BatchShape:
        """Return the shape of the iteration that has begun."""
        return self._iteration.shape() if self._repeated is None else self._repeated.shape()

    def finish(self, now_s: float) -> IterationResult:
        """End the iteration that was started, with its tokens at `now_s`."""
        if self._repeated is not None:
            self._repeated.ends_s.append(now_s)
            self._iteration = Iteration()
            return IterationResult(self._repeated.tokens_out)
        tokens: dict[RequestId, int] = {}
        finished: dict[RequestId, Finish] = {}
        drafted: list[Drafted] = []
        self._running_cache = None
        for entry in self._iteration.decodes:
            if entry.aborted:
                continue
            job = entry.job = advance(entry.job, 1, 1, now_s)
            tokens[job.request.id] = 1
            if job.generated_tokens >= entry.next_event_tokens:
                self._handle_event(entry, now_s, finished)
        for grant in self._iteration.grants:
            entry = grant.entry
            if entry.aborted:
                continue
            new_tokens = self._new_tokens(grant, drafted)
            entry.job = advance(entry.job, grant.tokens + max(new_tokens - 1, 0), new_tokens, now_s)
            entry.decoding = entry.job.decoding
            if new_tokens == 0:
                continue
            tokens[entry.job.request.id] = new_tokens
            if entry.job.generated_tokens >= entry.next_event_tokens:
                self._handle_event(entry, now_s, finished)
        outcome = IterationResult(tokens, finished, self._iteration.preempted, drafted)
        self._iteration = Iteration()
        return outcome

    def _apply_repeated(self) -> None:
        """Apply the repeated iterations that have ended to jobs and blocks."""
        if self._repeated is not None:
            self._running_cache = None
            self._repeated.settle(self.block_tokens, under_way=bool(self._iteration.decodes))

    def _stop_repeating(self) -> None:
        """End the repetition, because the next iteration differs."""
        self._apply_repeated()
        self._repeated = self._repeatable_blocks = None

    def _handle_event(self, entry: ActiveRequest, now_s: float, finished: dict[RequestId, Finish]) -> None:
        """Handle the last token of an answer, the last of its thinking, or the last of its prediction."""
        if entry.job.generated_tokens == entry.answer_tokens:
            finished[entry.job.request.id] = self._finish_request(entry)
            return
        if entry.ends_thinking():
            entry.job = thinking_ended(entry.job, now_s)
            self.finished_thinking_tokens[entry.job.request.id] = entry.thinking_tokens
            entry.thinking_tokens = 0
        if self._extend_prediction is not None and entry.job.output_tokens_left == 1:
            entry.job = entry.job._replace(output_tokens=self._extend_prediction(entry.job))
        entry.update_next_event()

    def _new_tokens(self, grant: Grant, drafted: list[Drafted]) -> int:
        if not grant.emits:
            return 0
        if grant.drafts == 0:
            return 1
        job = grant.entry.job
        accepted = self._accept(grant.drafts)
        drafted.append(Drafted(job.request.tier, grant.drafts, accepted))
        return min(1 + accepted, grant.entry.answer_tokens - job.generated_tokens)

    def _grow(self, entry: ActiveRequest, kv_tokens: int) -> None:
        blocks = growth_blocks(entry, kv_tokens, self._kv)
        self.free_blocks -= blocks
        entry.blocks += blocks

    def _finish_request(self, entry: ActiveRequest) -> Finish:
        request = entry.job.request
        del self._running[request.id]
        self._free(entry)
        self.finished_thinking_tokens.pop(request.id, None)
        return Finish.LENGTH if entry.answer_tokens >= request.max_output_tokens else Finish.STOP

    def _preempt(self, entry: ActiveRequest) -> None:
        del self._running[entry.job.request.id]
        self._running_cache = None
        self._free(entry)
        entry.job = preempted(entry.job)
        entry.decoding = False
        self._enqueue(entry, started=True)
        self.preemptions += 1

    def _enqueue(self, entry: ActiveRequest, *, started: bool = False) -> None:
        """Queue by arrival. Among equal arrival times, requests that had been started go first."""
        find = bisect_left if started else bisect_right
        self._waiting.insert(find(self._waiting, _arrival_s(entry), key=_arrival_s), entry)
        self._waiting_ids[entry.job.request.id] = entry
        self._waiting_cache = None

    def _dequeue(self, job_id: RequestId) -> ActiveRequest | None:
        entry = self._waiting_ids.pop(job_id, None)
        if entry is not None:
            place = bisect_left(self._waiting, _arrival_s(entry), key=_arrival_s)
            del self._waiting[self._waiting.index(entry, place)]
            self._waiting_cache = None
        return entry

    def _free(self, entry: ActiveRequest) -> None:
        self.free_blocks += entry.blocks
        entry.blocks = 0


def _arrival_s(entry: ActiveRequest) -> float:
    return entry.job.request.arrival_s
