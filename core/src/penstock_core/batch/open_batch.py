"""A batch while it is being filled: what is in it, how long it takes so far, and who gave way for it."""

from collections.abc import Iterable, Sequence

from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId
from penstock_core.timing.time_model import BatchWork, chunk_work, largest_chunk


class OpenBatch:
    """One iteration under construction. Keeps the engine's bounds: tokens, blocks, requests running."""

    def __init__(self, view: ReplicaView) -> None:
        self.view = view
        self.tokens: dict[RequestId, int] = {}
        self.drafts: dict[RequestId, int] = {}
        self.preempted: dict[RequestId, None] = {}  # in order
        self.work = BatchWork(0)
        self.free_blocks = view.kv.free_blocks
        self.free_seats = view.limits.running - len(view.running)

    @property
    def left_tokens(self) -> int:
        """Tokens that the engine's bound still allows."""
        return self.view.limits.batch_tokens - self.work.tokens

    def seconds(self, tokens: int = 0, context_tokens: int = 0, prefill_work: float = 0.0) -> float:
        """Duration with this much more in it."""
        batch_tokens, context, attention, spec_steps = self.work
        return self.view.model.seconds(
            BatchWork(batch_tokens + tokens, context + context_tokens, attention + prefill_work, spec_steps)
        )

    def add(self, job: Job, tokens: int) -> None:
        """Compute `tokens` of the job's pending ones. The caller has made sure that they fit."""
        batch_tokens, context, attention, spec_steps = self.work
        self.free_blocks -= self.blocks_wanted(job, tokens)
        if job.computed_tokens == 0:
            self.free_seats -= 1
        self.tokens[job.request.id] = tokens
        if job.decoding:
            context += job.computed_tokens + 1
        else:
            attention += chunk_work(tokens, job.computed_tokens)
        self.work = BatchWork(batch_tokens + tokens, context, attention, spec_steps)

    def draft(self, job: Job, drafts: int) -> None:
        """Verify so many drafts beside the one token of a decode that is in the batch already."""
        if not drafts:
            return
        batch_tokens, context, attention, spec_steps = self.work
        self.free_blocks -= self.blocks_wanted(job, 1 + drafts) - self.blocks_wanted(job, 1)
        self.drafts[job.request.id] = drafts
        self.work = BatchWork(batch_tokens + drafts, context, attention, max(spec_steps, drafts))

    def draft_all(self, wanted: Sequence[tuple[Job, int]], limit_s: float) -> bool:
        """So many drafts for each of these decodes, where there is room for all; whether there is."""
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
        """Duration with this many drafts more, of one decode."""
        work = self.work
        more = work._replace(tokens=work.tokens + drafts, spec_steps=max(work.spec_steps, drafts))
        return self.view.model.seconds(more)

    def add_decodes(self, jobs: Sequence[Job]) -> None:
        """One token for each of them, where tokens and blocks are known to suffice for all."""
        self.tokens.update(dict.fromkeys([job.request.id for job in jobs], 1))
        size = self.view.kv.block_tokens
        computed = [job.computed_tokens for job in jobs]
        self.free_blocks -= sum([tokens % size == 0 for tokens in computed])
        context = sum(computed) + len(jobs)
        work = self.work
        self.work = work._replace(
            tokens=work.tokens + len(jobs), context_tokens=work.context_tokens + context
        )

    def blocks_wanted(self, job: Job, tokens: int) -> int:
        """Blocks that the job needs beyond those it holds, to compute this many more tokens."""
        kv = self.view.kv
        return kv.blocks_for(job.computed_tokens + tokens) - kv.blocks_for(job.computed_tokens)

    def room_tokens(self, job: Job) -> int:
        """How many more of the job's tokens the free blocks and its own last one can hold."""
        kv, done = self.view.kv, job.computed_tokens
        return (kv.blocks_for(done) + self.free_blocks) * kv.block_tokens - done

    def largest_chunk(self, job: Job, limit_s: float) -> int:
        """Most of the job's pending tokens with which the batch ends within `limit_s`, blocks aside."""
        most = min(job.pending_tokens, self.left_tokens)
        return largest_chunk(self.view.model, self.work, most, job.computed_tokens, limit_s)

    def preempt(self, job: Job) -> None:
        """Free a running job's blocks and seat."""
        self.preempted[job.request.id] = None
        self.free_blocks += self.view.kv.blocks_for(job.computed_tokens)
        self.free_seats += 1

    def preempt_idle(self, job: Job) -> None:
        """Preempt it unless it is in the batch or was preempted before."""
        if job.request.id not in self.tokens and job.request.id not in self.preempted:
            self.preempt(job)

    def has_room(self, blocks: int, seats: int) -> bool:
        """Whether so much is free."""
        return self.free_blocks >= blocks and self.free_seats >= seats

    def make_room(self, blocks: int, seats: int, victims: Iterable[Job]) -> bool:
        """Preempt victims in their order until this much is free, or none is left; whether it is free.

        victims: an iterator goes on where the call before stopped, so that each job is looked at once a step.
        """
        if self.has_room(blocks, seats):
            return True  # looking for the first victim may be work
        for job in victims:
            self.preempt_idle(job)
            if self.has_room(blocks, seats):
                return True
        return False

    def standing_step(self) -> Step:
        """The finished batch of those who run everybody that does wherever tokens and blocks suffice for all.

        Where that is one token each, and nobody waits, no time and no progress changes it: it stands.
        """
        count, view = len(self.tokens), self.view
        one_each = 0 < count == len(view.running) == self.work.tokens and not self.work.prefill_work
        stands = one_each and not view.waiting and view.speculation is None
        return self._step(count if stands else None)

    def step(self) -> Step:
        """The finished batch."""
        return self._step(None)

    def _step(self, stands_blocks: int | None) -> Step:
        seconds = self.view.model.seconds(self.work)
        return Step(self.tokens, tuple(self.preempted), self.drafts, seconds, stands_blocks=stands_blocks)
