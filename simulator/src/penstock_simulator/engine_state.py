"""What an inference engine does with a policy's steps, without a clock: requests, KV blocks, tokens.

Each iteration has two ends. `start` carries out a step's beginning: preempted jobs lose their blocks,
newcomers take a place, everybody in the batch gets the blocks that its tokens need. `finish` brings the
tokens out. Between them requests may arrive and be aborted, as they do on a busy engine; an aborted one
frees its blocks at once and brings nothing out.

The engine keeps vLLM's rules, whatever a policy asks. A step past a bound (more tokens than pending, than
the batch or than newcomers' blocks, more requests than seats) is refused as `ImpossibleStep`. Running jobs
whose growth no longer fits are not a policy's mistake, since nobody knows how long answers get: the engine
makes room as vLLM does, by recompute. This step's newcomers give way first, then best effort, then the job
started last; a preempted job keeps its generated tokens and waits at its place by arrival.
"""

from bisect import insort
from collections.abc import Callable

from penstock_core.policy import Step
from penstock_core.replica_view import KvCache, Limits, ReplicaView
from penstock_core.request import Job, RequestId, advance, preempted
from penstock_core.time_model import TimeModel

from penstock_simulator.iteration import Finish, Grant, ImpossibleStep, Iteration, Outcome, Seat


class NeverFits(Exception):
    """The request at its longest needs more KV blocks than the engine has."""


def no_drafts(drafts: int) -> int:
    """Accepted drafts of an engine whose drafter is never right."""
    return 0


class EngineState:
    """The requests of one engine and the blocks they hold.

    accept: drafted tokens -> how many of them the model accepts; seeded by whoever makes it.
    """

    def __init__(
        self,
        kv_tokens: int,
        limits: Limits,
        block_tokens: int = 16,
        accept: Callable[[int], int] = no_drafts,
    ) -> None:
        self.limits = limits
        self.block_tokens = block_tokens
        self.total_blocks = kv_tokens // block_tokens
        self.free_blocks = self.total_blocks
        self.preemptions = 0
        self._accept = accept
        self._running: dict[RequestId, Seat] = {}
        self._waiting: list[Seat] = []
        self._waiting_ids: dict[RequestId, Seat] = {}
        self._iteration = Iteration()

    def __contains__(self, job_id: RequestId) -> bool:
        return job_id in self._running or job_id in self._waiting_ids

    @property
    def running(self) -> tuple[Job, ...]:
        """Jobs that hold KV, in the order they were started."""
        return tuple([seat.job for seat in self._running.values()])

    @property
    def waiting(self) -> tuple[Job, ...]:
        """Jobs that hold none, in order of arrival."""
        return tuple([seat.job for seat in self._waiting])

    @property
    def running_count(self) -> int:
        """How many hold KV."""
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        """How many wait for it."""
        return len(self._waiting)

    def view(self, now_s: float, busy_until_s: float, model: TimeModel) -> ReplicaView:
        """Everything a policy may look at."""
        kv = KvCache(self.total_blocks, self.free_blocks, self.block_tokens)
        return ReplicaView(now_s, busy_until_s, self.running, self.waiting, kv, self.limits, model)

    def add(self, job: Job, answer_tokens: int) -> None:
        """Take a request that will really answer with `answer_tokens`. Raises NeverFits, ValueError."""
        if job.request.id in self:
            raise ValueError(f"request {job.request.id} is already here")
        if self._blocks_for(job.request.prompt_tokens + answer_tokens) > self.total_blocks:
            raise NeverFits(job.request.id)
        self._wait(Seat(job, answer_tokens))

    def abort(self, job_id: RequestId) -> bool:
        """Forget a request and free its blocks; whether it was here."""
        seat = self._running.pop(job_id, None)
        if seat is None:
            seat = self._unwait(job_id)
        if seat is None:
            return False
        self._free(seat)
        seat.gone = True
        return True

    def apply(self, step: Step, now_s: float) -> Outcome:
        """A whole iteration that ends at `now_s`."""
        self.start(step)
        return self.finish(now_s)

    def start(self, step: Step) -> Iteration:
        """Begin an iteration. Raises ImpossibleStep, and then has changed nothing."""
        wanted = self._checked(step)
        for job_id in step.preempt:
            self._preempt(self._running[job_id])
        iteration = self._make_room(wanted)
        for grant in iteration.grants:
            if grant.seat.blocks == 0:
                self._running[grant.seat.job.request.id] = grant.seat
                self._unwait(grant.seat.job.request.id)
            self._grow(grant.seat, grant.kv_tokens)
        for seat in iteration.decodes:
            if seat.job.computed_tokens == seat.blocks * self.block_tokens:
                self._grow(seat, seat.job.computed_tokens + 1)
        self._iteration = iteration
        return iteration

    def finish(self, now_s: float) -> Outcome:
        """End the iteration that was started: its tokens are out at `now_s`."""
        tokens: dict[RequestId, int] = {}
        finished: dict[RequestId, Finish] = {}
        for seat in self._iteration.decodes:
            if seat.gone:
                continue
            job = seat.job = advance(seat.job, 1, 1, now_s)
            tokens[job.request.id] = 1
            if job.generated_tokens == seat.answer_tokens:
                finished[job.request.id] = self._leave(seat)
        for grant in self._iteration.grants:
            seat = grant.seat
            if seat.gone:
                continue
            new_tokens = self._new_tokens(grant)
            seat.job = advance(seat.job, grant.tokens + max(new_tokens - 1, 0), new_tokens, now_s)
            seat.decoding = seat.job.decoding
            if new_tokens == 0:
                continue
            tokens[seat.job.request.id] = new_tokens
            if seat.job.generated_tokens == seat.answer_tokens:
                finished[seat.job.request.id] = self._leave(seat)
        outcome = Outcome(tokens, finished, self._iteration.preempted)
        self._iteration = Iteration()
        return outcome

    def _new_tokens(self, grant: Grant) -> int:
        if not grant.emits:
            return 0
        if grant.drafts == 0:
            return 1
        left = grant.seat.answer_tokens - grant.seat.job.generated_tokens
        return min(1 + self._accept(grant.drafts), left)

    def _checked(self, step: Step) -> Iteration:
        """The step as an iteration, checked against everything but growth. Raises ImpossibleStep."""
        decodes: list[Seat] = []
        grants: list[Grant] = []
        for job_id, tokens in step.tokens.items():
            seat = self._running.get(job_id)
            if seat is not None and seat.decoding and tokens == 1 and job_id not in step.drafts:
                decodes.append(seat)
            else:
                grants.append(self._grant(job_id, tokens, step.drafts.get(job_id, 0)))
        self._check_batch(step)
        self._check_newcomers([g for g in grants if g.seat.blocks == 0], step.preempt)
        return Iteration(decodes, grants, step.preempt)

    def _grant(self, job_id: RequestId, tokens: int, drafts: int) -> Grant:
        seat = self._running.get(job_id) or self._waiting_ids.get(job_id)
        if seat is None:
            raise ImpossibleStep(f"{job_id} is not here")
        if not 0 < tokens <= seat.job.pending_tokens:
            raise ImpossibleStep(f"{job_id} has {seat.job.pending_tokens} tokens pending, not {tokens}")
        if drafts < 0 or (drafts and not seat.decoding):
            raise ImpossibleStep(f"{job_id} cannot draft {drafts} tokens")
        return Grant(seat, tokens, drafts)

    def _check_batch(self, step: Step) -> None:
        batch_tokens = sum(step.tokens.values()) + sum(step.drafts.values())
        if batch_tokens > self.limits.batch_tokens:
            raise ImpossibleStep(f"{batch_tokens} tokens in a batch of at most {self.limits.batch_tokens}")
        if not step.drafts.keys() <= step.tokens.keys():
            raise ImpossibleStep("drafts for a job that is not in the batch")
        for job_id in step.preempt:
            if job_id not in self._running or job_id in step.tokens:
                raise ImpossibleStep(f"{job_id} cannot be preempted: it is not running, or is in the batch")
        if len(set(step.preempt)) < len(step.preempt):
            raise ImpossibleStep("a job is preempted twice")

    def _check_newcomers(self, newcomers: list[Grant], preempt: tuple[RequestId, ...]) -> None:
        if not newcomers:
            return
        running = len(self._running) - len(preempt) + len(newcomers)
        if running > self.limits.running:
            raise ImpossibleStep(f"{running} running, at most {self.limits.running} may")
        free_blocks = self.free_blocks + sum(self._running[job_id].blocks for job_id in preempt)
        needed_blocks = sum(self._blocks_for(grant.kv_tokens) for grant in newcomers)
        if needed_blocks > free_blocks:
            raise ImpossibleStep(f"newcomers need {needed_blocks} blocks, {free_blocks} are free")

    def _make_room(self, wanted: Iteration) -> Iteration:
        """The iteration that fits: where growth does not, some give way."""
        growth = [self._growth_blocks(g.seat, g.kv_tokens) for g in wanted.grants]
        at_border = [s for s in wanted.decodes if s.job.computed_tokens == s.blocks * self.block_tokens]
        missing = sum(growth) + len(at_border) - self.free_blocks
        if missing <= 0:
            return wanted
        owed = {id(g.seat): blocks for g, blocks in zip(wanted.grants, growth, strict=True)}
        owed |= {id(seat): 1 for seat in at_border}
        newcomers = [g.seat for g in reversed(wanted.grants) if g.seat.blocks == 0]
        running = sorted(reversed(self._running.values()), key=lambda seat: not seat.job.best_effort)
        out: set[int] = set()
        victims: list[RequestId] = []
        for seat in (*newcomers, *running):
            out.add(id(seat))
            missing -= seat.blocks + owed.get(id(seat), 0)
            if seat.blocks:
                self._preempt(seat)
                victims.append(seat.job.request.id)
            if missing <= 0:
                break
        return Iteration(
            [seat for seat in wanted.decodes if id(seat) not in out],
            [grant for grant in wanted.grants if id(grant.seat) not in out],
            (*wanted.preempted, *victims),
        )

    def _growth_blocks(self, seat: Seat, kv_tokens: int) -> int:
        return max(self._blocks_for(kv_tokens) - seat.blocks, 0)

    def _grow(self, seat: Seat, kv_tokens: int) -> None:
        blocks = self._growth_blocks(seat, kv_tokens)
        self.free_blocks -= blocks
        seat.blocks += blocks

    def _leave(self, seat: Seat) -> Finish:
        request = seat.job.request
        del self._running[request.id]
        self._free(seat)
        return Finish.LENGTH if seat.answer_tokens >= request.max_output_tokens else Finish.STOP

    def _preempt(self, seat: Seat) -> None:
        del self._running[seat.job.request.id]
        self._free(seat)
        seat.job = preempted(seat.job)
        seat.decoding = False
        self._wait(seat)
        self.preemptions += 1

    def _wait(self, seat: Seat) -> None:
        insort(self._waiting, seat, key=_arrival_s)
        self._waiting_ids[seat.job.request.id] = seat

    def _unwait(self, job_id: RequestId) -> Seat | None:
        seat = self._waiting_ids.pop(job_id, None)
        if seat is not None:
            self._waiting = [other for other in self._waiting if other is not seat]
        return seat

    def _free(self, seat: Seat) -> None:
        self.free_blocks += seat.blocks
        seat.blocks = 0

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)


def _arrival_s(seat: Seat) -> float:
    return seat.job.request.arrival_s
