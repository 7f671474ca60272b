"""A batch under construction: its work, its duration so far, and the requests preempted for it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId, deadline_order
from penstock_core.timing.time_model import BatchWork, chunk_work, largest_chunk

VictimsOf = Callable[[Job], Iterable[Job]]
"""Returns the jobs that may be preempted for a job, in order. Each is returned once for a batch."""


class OpenBatch:
    """One iteration under construction. Enforces the engine's bounds: tokens, blocks, running requests."""

    def __init__(self, view: ReplicaView) -> None:
        self.view = view
        self.tokens: dict[RequestId, int] = {}
        self.drafts: dict[RequestId, int] = {}
        self.preempted: dict[RequestId, None] = {}  # in order
        self.work = BatchWork(0)
        self.free_blocks = view.kv.free_blocks
        self.free_slots = view.limits.running - len(view.running)

    @property
    def left_tokens(self) -> int:
        """Return the tokens that the engine's bound still allows."""
        return self.view.limits.batch_tokens - self.work.tokens

    def seconds(self, tokens: int = 0, context_tokens: int = 0, prefill_work: float = 0.0) -> float:
        """Return the duration with this much additional work."""
        batch_tokens, context, attention, spec_steps = self.work
        return self.view.model.seconds(
            BatchWork(batch_tokens + tokens, context + context_tokens, attention + prefill_work, spec_steps)
        )

    def add(self, job: Job, tokens: int) -> None:
        """Compute `tokens` of the job's pending ones. The caller ensures that they fit."""
        if job.decoding:
            self.add_token(job)
            return
        batch_tokens, context, attention, spec_steps = self.work
        self._hold(job, tokens)
        attention += _prefill_work(job, tokens)
        self.work = BatchWork(batch_tokens + tokens, context, attention, spec_steps)

    def add_token(self, job: Job) -> None:
        """Compute one token of a decode. The caller ensures that it fits."""
        batch_tokens, context, attention, spec_steps = self.work
        self._hold(job, 1)
        self.work = BatchWork(batch_tokens + 1, context + job.computed_tokens + 1, attention, spec_steps)

    def _hold(self, job: Job, tokens: int) -> None:
        self.free_blocks -= self.blocks_wanted(job, tokens)
        if not job.holds_kv:
            self.free_slots -= 1
        self.tokens[job.request.id] = tokens

    def draft(self, job: Job, drafts: int) -> None:
        """Verify this many draft tokens in addition to the one token of a decode in the batch."""
        if not drafts:
            return
        batch_tokens, context, attention, spec_steps = self.work
        self.free_blocks -= self.blocks_wanted(job, 1 + drafts) - self.blocks_wanted(job, 1)
        self.drafts[job.request.id] = drafts
        self.work = BatchWork(batch_tokens + drafts, context, attention, max(spec_steps, drafts))

    def draft_most(self, decodes: Sequence[Job], by_tier: Mapping[str, int], limit_s: float) -> None:
        """Add draft tokens of decodes in the batch as far as tokens, blocks and `limit_s` allow.

        by_tier: draft tokens of each; a decode has none for tokens after its last.
        """
        if not by_tier:
            return
        wanted = [
            (job, drafts)
            for job in decodes
            if (drafts := min(by_tier.get(job.request.tier, 0), job.output_tokens - job.generated_tokens - 1))
            > 0
            and job.request.id in self.tokens
        ]
        if self.draft_all(wanted, limit_s):
            return
        for job, most in wanted:
            drafts = min(most, self.left_tokens)
            if drafts == 0:
                return
            blocks = self.blocks_wanted(job, 1 + drafts) - self.blocks_wanted(job, 1)
            if blocks <= self.free_blocks and self.seconds_drafting(drafts) <= limit_s:
                self.draft(job, drafts)

    def draft_all(self, wanted: Sequence[tuple[Job, int]], limit_s: float) -> bool:
        """Add draft tokens for all of these decodes if they fit. Returns whether they do."""
        drafts, size = [drafts for _, drafts in wanted], self.view.kv.block_tokens
        blocks = sum(
            [
                -(-(job.computed_tokens + 1 + n) // size) + -(job.computed_tokens + 1) // size
                for job, n in wanted
            ]
        )
        batch_tokens, context, attention, spec_steps = self.work
        tokens = batch_tokens + sum(drafts)
        work = BatchWork(tokens, context, attention, max([spec_steps, *drafts]))
        fits = tokens <= self.view.limits.batch_tokens and blocks <= self.free_blocks
        if not fits or self.view.model.seconds(work) > limit_s:
            return False
        self.drafts.update([(job.request.id, n) for job, n in wanted])
        self.free_blocks -= blocks
        self.work = work
        return True

    def seconds_drafting(self, drafts: int) -> float:
        """Return the duration with this many additional draft tokens of one decode."""
        work = self.work
        more = work._replace(tokens=work.tokens + drafts, spec_steps=max(work.spec_steps, drafts))
        return self.view.model.seconds(more)

    def decode_all(self, jobs: Sequence[Job], limit_s: float = inf) -> bool:
        """Add one token of each job if all fit. Returns whether they do."""
        tokens, context, attention, spec_steps = self.work
        computed = [job.computed_tokens for job in jobs]
        work = BatchWork(tokens + len(jobs), context + sum(computed) + len(jobs), attention, spec_steps)
        if len(jobs) > self.free_blocks or work.tokens > self.view.limits.batch_tokens:
            return False
        if limit_s < inf and self.view.model.seconds(work) > limit_s:
            return False
        size = self.view.kv.block_tokens
        self.tokens.update(dict.fromkeys([job.request.id for job in jobs], 1))
        self.free_blocks -= sum([tokens % size == 0 for tokens in computed])
        self.work = work
        return True

    def decode_most(self, jobs: Sequence[Job], victims_of: VictimsOf) -> None:
        """Add one token of each job that has room, the most urgent first; of all at once if all fit."""
        if self.decode_all(jobs):
            return
        for job in sorted(jobs, key=deadline_order):
            if job.request.id in self.preempted or not self.left_tokens:
                continue
            if self.make_room(self.blocks_wanted(job, 1), 0, victims_of(job)):
                self.add_token(job)

    def prefill_most(self, prompts: Sequence[Job], victims_of: VictimsOf, limit_s: float) -> float:
        """Add chunks of prompts in order, as far as there is room. Returns how long the batch may be then."""
        for job in prompts:
            if job.request.id in self.preempted:
                continue
            shortened_s = self.add_prompt(job, limit_s, victims_of(job))
            if shortened_s is None:
                break
            limit_s = shortened_s
        return limit_s

    def add_prompt(self, job: Job, limit_s: float, victims: Iterable[Job]) -> float | None:
        """Add the largest chunk of an admitted prompt. Returns how long the batch may be with it.

        Returns None if not even one token of a prompt fits in time. If the prompt ends in this batch and is
        due before the batch ends, it shortens the batch to its deadline, less the margin for whatever else is
        added. It starts only if there are blocks for the whole prompt.
        """
        pending, done, holds, model = job.pending_tokens, job.computed_tokens, job.holds_kv, self.view.model
        due_in_s, then_s = job.due_s - self.view.now_s, limit_s
        if self.seconds(pending, 0, _prefill_work(job, pending)) <= min(limit_s, due_in_s):
            limit_s = min(limit_s, due_in_s)
            then_s = min(limit_s, due_in_s / (1.0 + model.deadline_margin))
        chunk = largest_chunk(model, self.work, min(pending, self.left_tokens), done, limit_s)
        if chunk == 0:
            return None
        blocks = self.blocks_wanted(job, chunk if holds else pending)
        if not self.make_room(blocks, 0 if holds else 1, victims):
            chunk = min(chunk, self.room_tokens(job)) if holds else 0
        if chunk > 0:
            self.add(job, chunk)
        return then_s

    def blocks_wanted(self, job: Job, tokens: int) -> int:
        """Return the blocks that the job needs beyond those it holds to compute this many more tokens."""
        kv, done = self.view.kv, job.computed_tokens
        return kv.blocks_for(done + tokens) - kv.blocks_for(done) + (job.unheld_blocks or 0)

    def room_tokens(self, job: Job) -> int:
        """Return how many more of the job's tokens fit into free blocks and the job's last block."""
        kv, done = self.view.kv, job.computed_tokens
        return (kv.blocks_for(done) + self.free_blocks) * kv.block_tokens - done

    def largest_chunk(self, job: Job, limit_s: float) -> int:
        """Return the job's largest chunk with which the batch ends within `limit_s`, blocks ignored."""
        most = min(job.pending_tokens, self.left_tokens)
        return largest_chunk(self.view.model, self.work, most, job.computed_tokens, limit_s)

    def blocks_freed(self, job: Job) -> int:
        """Return the blocks that preempting a running job alone frees."""
        kv = self.view.kv
        held = kv.blocks_for(job.computed_tokens)
        return held if kv.shared_blocks is None else held - kv.shared_blocks.get(job.request.id, 0)

    def preempt(self, job: Job) -> None:
        """Free a running job's blocks and slot."""
        self.preempted[job.request.id] = None
        self.free_blocks += self.blocks_freed(job)
        self.free_slots += 1

    def preempt_idle(self, job: Job) -> None:
        """Preempt a job unless it is in the batch or already preempted."""
        if job.request.id not in self.tokens and job.request.id not in self.preempted:
            self.preempt(job)

    def has_room(self, blocks: int, slots: int) -> bool:
        """Return whether this many blocks and slots are free."""
        return self.free_blocks >= blocks and self.free_slots >= slots

    def make_room(self, blocks: int, slots: int, victims: Iterable[Job]) -> bool:
        """Preempt victims in order until this many blocks and slots are free. Returns whether they are.

        victims: an iterator, which continues where the previous call stopped, so each job is visited once per
            step.
        """
        if self.has_room(blocks, slots):
            return True  # getting the first victim may be expensive
        for job in victims:
            self.preempt_idle(job)
            if self.has_room(blocks, slots):
                return True
        return False

    def repeatable_step(self) -> Step:
        """Return the step of a policy that runs all jobs whenever tokens and blocks suffice.

        If that is one token each, and no job waits, neither time nor progress changes it, so it can be
        repeated.
        """
        count, view = len(self.tokens), self.view
        one_each = 0 < count == len(view.running) == self.work.tokens and not self.work.prefill_work
        repeats = one_each and not view.waiting and view.speculation is None
        return self._step(count if repeats else None)

    def step(self) -> Step:
        """Return the finished batch as a step."""
        return self._step(None)

    def _step(self, repeatable_blocks: int | None) -> Step:
        seconds = self.view.model.seconds(self.work)
        return Step(
            self.tokens, tuple(self.preempted), self.drafts, seconds, repeatable_blocks=repeatable_blocks
        )


def _prefill_work(job: Job, chunk_tokens: int) -> float:
    return chunk_work(chunk_tokens, job.computed_tokens)
