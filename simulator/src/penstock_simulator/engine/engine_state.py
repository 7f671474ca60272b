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

from collections.abc import Callable, Mapping, Sequence

from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, RequestId, advance, preempted, promoted
from penstock_core.domain.shared_prefixes import SharedPrefixes
from penstock_core.timing.acceptance_rate import Drafted
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

from penstock_simulator.engine.cached_kv import CachedKv
from penstock_simulator.engine.generation import Generation, no_drafts
from penstock_simulator.engine.iteration import (
    ActiveRequest,
    Finish,
    Iteration,
    IterationResult,
)
from penstock_simulator.engine.kv_blocks import KvBlocks
from penstock_simulator.engine.preemption import preempt_for_growth
from penstock_simulator.engine.repeated_decodes import RepeatedDecodes, repeated_decodes
from penstock_simulator.engine.step_checks import checked_iteration
from penstock_simulator.engine.waiting_queue import WaitingQueue
from penstock_simulator.engine_timing.batch_shape import BatchShape
from penstock_simulator.prefix_cache.block_keys import BlockKey


class NeverFits(Exception):
    """The request needs more KV blocks at its full length than the engine has."""


class EngineState:
    """The requests of one engine and the KV blocks that they hold.

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
        self._blocks = KvBlocks(kv_tokens // block_tokens, block_tokens, prefix_caching=prefix_caching)
        self.preemptions = 0
        self._generation = Generation(accept, extend_prediction)
        self._running: dict[RequestId, ActiveRequest] = {}
        self._waiting = WaitingQueue()
        self._running_cache: tuple[Job, ...] | None = None  # invalidated by every change
        self._iteration = Iteration()
        self._cached_tokens: dict[RequestId, int] = {}  # of requests that the last iteration started
        self._repeatable_blocks: int | None = None  # `Step.repeatable_blocks` of the last step
        self._repeated: RepeatedDecodes | None = None

    def __contains__(self, job_id: RequestId) -> bool:
        return job_id in self._running or job_id in self._waiting.by_id

    @property
    def block_tokens(self) -> int:
        """KV cache entries of a block."""
        return self._blocks.block_tokens

    @property
    def total_blocks(self) -> int:
        """Number of KV blocks."""
        return self._blocks.total

    @property
    def free_blocks(self) -> int:
        """Blocks that no request holds."""
        return self._blocks.free

    @property
    def finished_thinking_tokens(self) -> Mapping[RequestId, int]:
        """Thinking tokens of each request that has finished thinking."""
        return self._generation.finished_thinking_tokens

    @property
    def _kv(self) -> KvCache:
        return self._blocks.view(self._running.values(), self._waiting.entries)

    @property
    def shared_prefixes(self) -> SharedPrefixes | None:
        """Return which requests hold the same leading blocks; None without a prefix cache."""
        return self._kv.shared_prefixes

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
        cached = self._blocks.cached
        return self._waiting.jobs() if cached is None else tuple(cached.jobs_in_view(self._waiting.entries))

    @property
    def running_count(self) -> int:
        """Number of jobs that hold KV blocks."""
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        """Number of waiting jobs."""
        return len(self._waiting.entries)

    def view(
        self, now_s: float, busy_until_s: float, model: TimeModel, speculation: Speculation | None = None
    ) -> ReplicaView:
        """Return the replica as its policy sees it."""
        running, waiting = self.running, self.waiting
        return ReplicaView(now_s, busy_until_s, running, waiting, self._kv, self.limits, model, speculation)

    def lazy_view(
        self, now_s: float, busy_until_s: float, model: TimeModel, speculation: Speculation | None = None
    ) -> Callable[[], ReplicaView]:
        """Return a function that computes the view at the time of this call; most are never read."""
        if self._repeated is None:
            view = self.view(now_s, busy_until_s, model, speculation)
            return lambda: view
        jobs, waiting, kv, limits = self._repeated.lazy_jobs(), self.waiting, self._kv, self.limits
        return lambda: ReplicaView(now_s, busy_until_s, jobs(), waiting, kv, limits, model, speculation)

    @property
    def cached(self) -> CachedKv | None:
        """The prefix cache; None without one."""
        return self._blocks.cached

    def cached_tokens(self, keys: Sequence[BlockKey], tokens: int) -> int:
        """Return the number of cached tokens of a prompt of this length with these keys."""
        return 0 if self.cached is None else self.cached.cached_tokens(keys, tokens)

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache. Returns False if a request holds blocks; then nothing changes."""
        return True if self.cached is None else self.cached.reset()

    def candidate(self, job: Job, keys: Sequence[BlockKey]) -> Job:
        """Return a new request as a policy should see it: with the part of its prompt that is cached.

        keys: keys of its first full blocks.
        """
        return job if self.cached is None else self.cached.candidate(job, keys)

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

        thinking_tokens: how many of them are thinking tokens, which come first. keys: keys of its first full
            blocks. pinned: whether the cached part of its prompt may not be evicted until its prefill begins.
        """
        if job.request.id in self:
            raise ValueError(f"request {job.request.id} is already in the engine")
        if self._kv.blocks_for(job.request.prompt_tokens + answer_tokens) > self.total_blocks:
            raise NeverFits(job.request.id)
        if self.cached is not None:
            job = job._replace(computed_tokens=0, unheld_blocks=None, prefix_of=None)
        entry = ActiveRequest(job, answer_tokens, thinking_tokens, kv=self._blocks.blocks_of(job, keys))
        if pinned:
            self._blocks.pin(entry)
        self._waiting.add(entry)

    def has_room(self, kv_tokens: int) -> bool:
        """Return whether one more request with `kv_tokens` may run: a free slot and enough free blocks."""
        return len(self._running) < self.limits.running and self._kv.blocks_for(kv_tokens) <= self.free_blocks

    def receive(self, job: Job, answer_tokens: int, thinking_tokens: int = 0) -> None:
        """Start a request with KV that another engine computed, between two iterations.

        The caller has checked `has_room`. Raises ValueError.
        """
        if job.request.id in self:
            raise ValueError(f"request {job.request.id} is already in the engine")
        self._stop_repeating()
        blocks = self._blocks.blocks_of(job, ())
        entry = ActiveRequest(job, answer_tokens, thinking_tokens, decoding=job.decoding, kv=blocks)
        self._running[job.request.id] = entry
        self._running_cache = None
        self._blocks.grow(entry, job.computed_tokens)

    def abort(self, job_id: RequestId) -> bool:
        """Remove a request and free its blocks. Returns whether it was in the engine."""
        self._stop_repeating()
        self._running_cache = None
        entry = self._running.pop(job_id, None)
        if entry is None:
            entry = self._waiting.remove(job_id)
        if entry is None:
            return False
        self._blocks.release(entry)
        self._generation.forget(job_id)
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
        blocks = self._blocks
        for grant in iteration.grants:
            if grant.entry.job.request.id in self._waiting.by_id:
                self._run(grant.entry)
            blocks.grow(grant.entry, grant.kv_tokens)
        for entry in iteration.decodes:
            if blocks.needs_block(entry.job.computed_tokens, entry.blocks):
                blocks.grow(entry, entry.job.computed_tokens + 1)
        self._iteration, self._repeatable_blocks = iteration, step.repeatable_blocks
        return iteration

    def repeat_last(self) -> Iteration | None:
        """Begin the last iteration again; None if its step does not repeat or a request has an event."""
        if self._repeated is None and self._repeatable_blocks is not None:
            entries = list(self._running.values())
            self._repeated = repeated_decodes(entries, self._repeatable_blocks, self.block_tokens)
        repeated, waits, free = self._repeated, self._waiting.entries, self._blocks.free
        if repeated is None or waits or not repeated.left or free < repeated.least_blocks:
            self._stop_repeating()
            return None
        self._blocks.grow_decodes(repeated.begin())
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
                self._finish_ended(entry, now_s, finished)
        for grant in self._iteration.grants:
            entry = grant.entry
            if entry.aborted:
                continue
            new_tokens = self._generation.new_tokens(grant, drafted)
            entry.job = advance(entry.job, grant.tokens + max(new_tokens - 1, 0), new_tokens, now_s)
            entry.decoding = entry.job.decoding
            if new_tokens == 0:
                continue
            tokens[entry.job.request.id] = new_tokens
            if entry.job.generated_tokens >= entry.next_event_tokens:
                self._finish_ended(entry, now_s, finished)
        outcome = IterationResult(tokens, finished, self._iteration.preempted, drafted, self._cached_tokens)
        self._iteration, self._cached_tokens = Iteration(), {}
        return outcome

    def _apply_repeated(self) -> None:
        """Apply the repeated iterations that have ended to jobs and blocks."""
        if self._repeated is not None:
            self._running_cache = None
            self._repeated.settle(self.block_tokens, in_progress=bool(self._iteration.decodes))

    def _stop_repeating(self) -> None:
        """End the repetition, because the next iteration differs."""
        self._apply_repeated()
        self._repeated = self._repeatable_blocks = None

    def _finish_ended(self, entry: ActiveRequest, now_s: float, finished: dict[RequestId, Finish]) -> None:
        """Handle a request's event. If it is the answer's end, add the request to `finished`."""
        if not self._generation.ends(entry, now_s):
            return
        request = entry.job.request
        del self._running[request.id]
        self._blocks.release(entry)
        self._generation.forget(request.id)
        limited = entry.answer_tokens >= request.max_output_tokens
        finished[request.id] = Finish.LENGTH if limited else Finish.STOP

    def _checked(self, step: Step) -> Iteration:
        """Return the step as an iteration; new requests hold their cached prefixes. Raises InvalidStep."""
        waiting, cached = self._waiting, self._blocks.cached
        if cached is None:
            return checked_iteration(step, self._running, waiting.by_id, self.limits, self._kv)
        before = [entry.job for entry in waiting.entries]
        for entry, job in zip(waiting.entries, cached.jobs_in_view(waiting.entries), strict=True):
            entry.job = job
        starting: set[RequestId] = set()
        try:
            wanted = checked_iteration(step, self._running, waiting.by_id, self.limits, self._kv)
            starting = {grant.entry.job.request.id for grant in wanted.grants}
        finally:
            for entry, job in zip(waiting.entries, before, strict=True):
                if entry.job.request.id not in starting:
                    entry.job = job
        self._blocks.hold_cached(wanted.grants)
        return wanted

    def _promote(self, job_id: RequestId, *, starts: bool) -> None:
        entry = self._running.get(job_id) or self._waiting.by_id[job_id]
        entry.job = promoted(entry.job)
        self._running_cache = None
        self._waiting.changed()
        if job_id in self._waiting.by_id and not starts:
            self._blocks.pin(entry)

    def _fitting(self, wanted: Iteration) -> Iteration:
        """Return the part of an iteration for which there are blocks, and preempt requests for it."""
        idle = not wanted.grants and not wanted.decodes and not self._running
        kv = self._kv
        if self._blocks.unpin_if_short(wanted, kv, idle=idle):
            kv = self._kv
        iteration, preempted = preempt_for_growth(wanted, tuple(self._running.values()), kv)
        self._blocks.release_unstarted(wanted, iteration)
        for entry in preempted:
            self._preempt(entry)
        return iteration

    def _run(self, entry: ActiveRequest) -> None:
        """Move a waiting request to the running ones."""
        job_id = entry.job.request.id
        self._running[job_id] = entry
        self._running_cache = None
        self._waiting.remove(job_id)
        if self.cached is not None:
            self._cached_tokens[job_id] = self._blocks.started(entry)

    def _preempt(self, entry: ActiveRequest) -> None:
        del self._running[entry.job.request.id]
        self._running_cache = None
        self._blocks.release(entry)
        entry.job = preempted(entry.job)
        entry.decoding, entry.preempted = False, True
        self._waiting.add(entry, started=True)
        self.preemptions += 1
