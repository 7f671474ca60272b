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
from collections.abc import Callable, Sequence

from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, RequestId, advance, preempted, promoted, thinking_ended
from penstock_core.timing.acceptance_rate import Drafted
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

from penstock_simulator.engine.cached_kv import CachedKv
from penstock_simulator.engine.iteration import (
    ActiveRequest,
    Finish,
    Grant,
    Iteration,
    IterationResult,
)
from penstock_simulator.engine.preemption import growth_blocks, missing_blocks, preempt_for_growth
from penstock_simulator.engine.repeated_decodes import RepeatedDecodes, repeated_decodes
from penstock_simulator.engine.step_checks import checked_iteration
from penstock_simulator.engine_timing.batch_shape import BatchShape
from penstock_simulator.prefix_cache.block_keys import BlockKey


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
    prefix_caching: whether blocks stay cached after their request (`cached_kv`).
    """

    def __init__(
        self,
        kv_tokens: int,
        limits: Limits,
        block_tokens: int = 16,
        accept: Callable[[int], int] = no_drafts,
        extend_prediction: Callable[[Job], int] | None = None,
        *,
        prefix_caching: bool = False,
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
        self._cached = CachedKv(self.total_blocks, block_tokens) if prefix_caching else None
        self._pinned: dict[RequestId, None] = {}  # waiting requests whose cached prefix may not be evicted
        self._cached_tokens: dict[RequestId, int] = {}  # of requests that the last iteration started
        self._repeatable_blocks: int | None = None  # `Step.repeatable_blocks` of the last step
        self._repeated: RepeatedDecodes | None = None

    def __contains__(self, job_id: RequestId) -> bool:
        return job_id in self._running or job_id in self._waiting_ids

    @property
    def _kv(self) -> KvCache:
        if self._cached is None:
            return KvCache(self.total_blocks, self.free_blocks, self.block_tokens)
        shared = self._cached.sharing([*self._running.values(), *self._waiting])
        return KvCache(self.total_blocks, self.free_blocks, self.block_tokens, *shared)

    @property
    def running(self) -> tuple[Job, ...]:
        """Jobs that hold KV blocks, in the order in which they were started."""
        self._apply_repeated()
        if self._running_cache is None:
            self._running_cache = tuple([entry.job for entry in self._running.values()])
        return self._running_cache

    @property
    def waiting(self) -> tuple[Job, ...]:
        """Jobs that are not running, in order of arrival; their cached prefixes count as computed."""
        if self._cached is not None:
            return tuple(self._cached.seen(self._waiting))
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
        """Return the replica as its policy sees it."""
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

    @property
    def cached(self) -> CachedKv | None:
        """The prefix cache; None without one."""
        return self._cached

    def cached_tokens(self, keys: Sequence[BlockKey], tokens: int) -> int:
        """Return the tokens that are cached of a prompt of this length with these keys."""
        return 0 if self._cached is None else self._cached.cached_tokens(keys, tokens)

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache. Returns False if a request holds blocks; then nothing changes."""
        return True if self._cached is None else self._cached.reset()

    def candidate(self, job: Job, keys: Sequence[BlockKey]) -> Job:
        """Return a new request as a policy should see it: with the part of its prompt that is cached.

        keys: of its first full blocks.
        """
        return job if self._cached is None else self._cached.candidate(job, keys)

    def add(
        self,
        job: Job,
        answer_tokens: int,
        thinking_tokens: int = 0,
        keys: Sequence[BlockKey] = (),
        *,
        pinned: bool = False,
    ) -> None:
        """Queue a request whose true answer length is `answer_tokens`. Raises NeverFits, ValueError.

        thinking_tokens: how many of them are thinking tokens, which come first. keys: of its first full
            blocks. pinned: whether the cached part of its prompt may not be evicted until its prefill begins.
        """
        if job.request.id in self:
            raise ValueError(f"request {job.request.id} is already here")
        if self._kv.blocks_for(job.request.prompt_tokens + answer_tokens) > self.total_blocks:
            raise NeverFits(job.request.id)
        entry = ActiveRequest(job, answer_tokens, thinking_tokens)
        if self._cached is not None:
            entry.job = job._replace(computed_tokens=0, unheld_blocks=None, prefix_of=None)
            entry.kv = self._cached.blocks_of(job, keys)
            if pinned:
                self._pin(entry)
        self._enqueue(entry)

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
        if self._cached is not None:
            entry.kv = self._cached.blocks_of(job, ())
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
        self._pinned.pop(job_id, None)
        entry.aborted = True
        return True

    def apply(self, step: Step, now_s: float) -> IterationResult:
        """Run an iteration that ends at `now_s`."""
        self.start(step)
        return self.finish(now_s)

    def start(self, step: Step) -> Iteration:
        """Begin an iteration. Raises InvalidStep, without any change."""
        self._stop_repeating()
        wanted = self._checked(step)
        for job_id in step.promote:
            self._promote(job_id, starts=job_id in step.tokens)
        for job_id in step.preempt:
            self._preempt(self._running[job_id])
        iteration = self._fitting(wanted)
        for grant in iteration.grants:
            if grant.entry.job.request.id in self._waiting_ids:
                self._run(grant.entry)
            self._grow(grant.entry, grant.kv_tokens)
        for entry in iteration.decodes:
            if self._needs_block(entry.job.computed_tokens, entry.blocks):
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
        growing = repeated.begin()
        if self._cached is None:
            self.free_blocks -= len(growing)
        else:
            for entry, kv_tokens in growing:
                self._cached.grow_decode(entry, kv_tokens)
            self.free_blocks = self._cached.free_blocks
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
        outcome = IterationResult(tokens, finished, self._iteration.preempted, drafted, self._cached_tokens)
        self._iteration, self._cached_tokens = Iteration(), {}
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

    def _checked(self, step: Step) -> Iteration:
        """Return the step as an iteration; its new requests hold what is cached. Raises InvalidStep."""
        cached = self._cached
        if cached is None:
            return checked_iteration(step, self._running, self._waiting_ids, self.limits, self._kv)
        before = [entry.job for entry in self._waiting]
        for entry, seen in zip(self._waiting, cached.seen(self._waiting), strict=True):
            entry.job = seen
        starting: set[RequestId] = set()
        try:
            wanted = checked_iteration(step, self._running, self._waiting_ids, self.limits, self._kv)
            starting = {grant.entry.job.request.id for grant in wanted.grants}
        finally:
            for entry, job in zip(self._waiting, before, strict=True):
                if entry.job.request.id not in starting:
                    entry.job = job
        for grant in wanted.grants:
            if grant.entry.job.unheld_blocks is not None and grant.entry.job.request.id not in self._pinned:
                cached.pin(grant.entry)
        self.free_blocks = cached.free_blocks
        return wanted

    def _unpin_if_short(self, wanted: Iteration, cached: CachedKv) -> None:
        """Release the pins of waiting requests if others need the blocks, or if nothing else can move."""
        idle = not wanted.grants and not wanted.decodes and not self._running
        if self._pinned and (idle or missing_blocks(wanted, self._kv) > 0):
            starting = {grant.entry.job.request.id for grant in wanted.grants}
            for job_id in [job_id for job_id in self._pinned if job_id not in starting]:
                cached.unpin(self._waiting_ids[job_id])
                del self._pinned[job_id]
            self.free_blocks = cached.free_blocks

    def _promote(self, job_id: RequestId, *, starts: bool) -> None:
        entry = self._running.get(job_id) or self._waiting_ids[job_id]
        entry.job = promoted(entry.job)
        self._running_cache = self._waiting_cache = None
        if job_id in self._waiting_ids and not starts:
            self._pin(entry)

    def _pin(self, entry: ActiveRequest) -> None:
        """Let a waiting request hold what is cached of it until its prefill begins."""
        if self._cached is not None:
            self._cached.pin(entry)
            self.free_blocks = self._cached.free_blocks
            if entry.job.unheld_blocks is not None:
                self._pinned[entry.job.request.id] = None

    def _fitting(self, wanted: Iteration) -> Iteration:
        """Return the part of an iteration for which there are blocks, and preempt requests for it."""
        if self._cached is not None:
            self._unpin_if_short(wanted, self._cached)
        iteration, preempted = preempt_for_growth(wanted, tuple(self._running.values()), self._kv)
        if self._cached is not None:
            self._keep_waiting(wanted, iteration, self._cached)
        for entry in preempted:
            self._preempt(entry)
        return iteration

    def _run(self, entry: ActiveRequest) -> None:
        """Move a waiting request to the running ones."""
        job_id = entry.job.request.id
        self._running[job_id] = entry
        self._running_cache = None
        self._dequeue(job_id)
        if self._cached is not None:
            self._cached_tokens[job_id] = self._cached.started(entry)
            self._pinned.pop(job_id, None)

    def _needs_block(self, computed_tokens: int, blocks: int) -> bool:
        """Return whether a decode needs a block, or completes one that is to be cached."""
        size = self.block_tokens
        return computed_tokens == blocks * size or (
            self._cached is not None and (computed_tokens + 1) % size == 0
        )

    def _keep_waiting(self, wanted: Iteration, iteration: Iteration, cached: CachedKv) -> None:
        """Let requests that do not start after all, for want of blocks, hold what they did before."""
        starting = {grant.entry.job.request.id for grant in iteration.grants}
        for grant in wanted.grants:
            job = grant.entry.job
            left_out = job.unheld_blocks is not None and job.request.id not in starting
            if left_out and job.request.id not in self._pinned:
                cached.unpin(grant.entry)
        self.free_blocks = cached.free_blocks

    def _grow(self, entry: ActiveRequest, kv_tokens: int) -> None:
        if self._cached is not None:
            self._cached.grow(entry, kv_tokens)
            self.free_blocks = self._cached.free_blocks
            return
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
        if self._cached is None:
            self.free_blocks += entry.blocks
        else:
            self._cached.release(entry)
            self.free_blocks = self._cached.free_blocks
        entry.blocks = 0


def _arrival_s(entry: ActiveRequest) -> float:
    return entry.job.request.arrival_s
