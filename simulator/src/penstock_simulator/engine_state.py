"""What an inference engine does with a policy's steps, without a clock: requests, KV blocks, tokens.

Each iteration has two ends. `start` carries out a step's beginning: preempted jobs lose their blocks,
newcomers take a place, everybody in the batch gets the blocks that its tokens need. `finish` brings the
tokens out. Between them requests may arrive and be aborted, as they do on a busy engine; an aborted one
frees its blocks at once and brings nothing out.

The engine keeps vLLM's rules, whatever a policy asks. A step past a bound (more tokens than pending, than
the batch or than newcomers' blocks, more requests than seats) is refused as `ImpossibleStep`
(`step_checks`). Running jobs whose growth no longer fits are not a policy's mistake, since nobody knows how
long answers get: the engine makes room as vLLM does, by recompute (`making_room`). A preempted job keeps its
generated tokens and waits at its place by arrival.

Whoever serves in virtual time may `go_on` instead of starting a step that stands (`standing`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable

from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, RequestId, advance, preempted, promoted, thinking_ended
from penstock_core.timing.acceptance_rate import Drafted
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

from penstock_simulator.batch_shape import BatchShape
from penstock_simulator.iteration import Finish, Grant, Iteration, Outcome, Seat
from penstock_simulator.making_room import growth_blocks, make_room
from penstock_simulator.standing import Standing, standing
from penstock_simulator.step_checks import checked


class NeverFits(Exception):
    """The request at its longest needs more KV blocks than the engine has."""


def no_drafts(drafts: int) -> int:
    """Accepted drafts of an engine whose drafter is never right."""
    return 0


class EngineState:
    """The requests of one engine and the blocks they hold.

    thought: tokens that each request has thought with, of those whose answer proper has begun.
    accept: drafted tokens -> how many of them the model accepts; seeded by whoever makes it.
    longer: the length to plan with, for a job that has outrun its prediction; None: one more token each time.
    """

    def __init__(
        self,
        kv_tokens: int,
        limits: Limits,
        block_tokens: int = 16,
        accept: Callable[[int], int] = no_drafts,
        longer: Callable[[Job], int] | None = None,
    ) -> None:
        self.limits = limits
        self.block_tokens = block_tokens
        self.total_blocks = kv_tokens // block_tokens
        self.free_blocks = self.total_blocks
        self.preemptions = 0
        self.thought: dict[RequestId, int] = {}
        self._accept, self._longer = accept, longer
        self._running: dict[RequestId, Seat] = {}
        self._waiting: list[Seat] = []
        self._waiting_ids: dict[RequestId, Seat] = {}
        self._running_seen: tuple[Job, ...] | None = None  # as last asked for, until something changes
        self._waiting_seen: tuple[Job, ...] | None = None
        self._iteration = Iteration()
        self._stands_blocks: int | None = None  # of the last step
        self._standing: Standing | None = None

    def __contains__(self, job_id: RequestId) -> bool:
        return job_id in self._running or job_id in self._waiting_ids

    @property
    def _kv(self) -> KvCache:
        return KvCache(self.total_blocks, self.free_blocks, self.block_tokens)

    @property
    def running(self) -> tuple[Job, ...]:
        """Jobs that hold KV, in the order they were started."""
        self._settle()
        if self._running_seen is None:
            self._running_seen = tuple([seat.job for seat in self._running.values()])
        return self._running_seen

    @property
    def waiting(self) -> tuple[Job, ...]:
        """Jobs that hold none, in order of arrival."""
        if self._waiting_seen is None:
            self._waiting_seen = tuple([seat.job for seat in self._waiting])
        return self._waiting_seen

    @property
    def running_count(self) -> int:
        """How many hold KV."""
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        """How many wait for it."""
        return len(self._waiting)

    def view(
        self, now_s: float, busy_until_s: float, model: TimeModel, speculation: Speculation | None = None
    ) -> ReplicaView:
        """Everything a policy may look at."""
        running, waiting = self.running, self.waiting
        return ReplicaView(now_s, busy_until_s, running, waiting, self._kv, self.limits, model, speculation)

    def view_later(
        self, now_s: float, busy_until_s: float, model: TimeModel, speculation: Speculation | None = None
    ) -> Callable[[], ReplicaView]:
        """The view of now, worked out when it is asked for."""
        if self._standing is None:
            view = self.view(now_s, busy_until_s, model, speculation)
            return lambda: view
        jobs, waiting, kv, limits = self._standing.jobs_later(), self.waiting, self._kv, self.limits
        return lambda: ReplicaView(now_s, busy_until_s, jobs(), waiting, kv, limits, model, speculation)

    def add(self, job: Job, answer_tokens: int, thinking_tokens: int = 0) -> None:
        """Take a request that will really answer with `answer_tokens`. Raises NeverFits, ValueError.

        thinking_tokens: how many of those are thinking, before the answer proper.
        """
        if job.request.id in self:
            raise ValueError(f"request {job.request.id} is already here")
        if self._kv.blocks_for(job.request.prompt_tokens + answer_tokens) > self.total_blocks:
            raise NeverFits(job.request.id)
        self._wait(Seat(job, answer_tokens, thinking_tokens))

    def has_room(self, kv_tokens: int) -> bool:
        """Whether there is a seat, and blocks for so many tokens of one more request."""
        return len(self._running) < self.limits.running and self._kv.blocks_for(kv_tokens) <= self.free_blocks

    def receive(self, job: Job, answer_tokens: int, thinking_tokens: int = 0) -> None:
        """Take a request that another engine has begun, with its KV, between two iterations.

        The caller has made sure that there is room (`has_room`). Raises ValueError.
        """
        if job.request.id in self:
            raise ValueError(f"request {job.request.id} is already here")
        self._stop_standing()
        seat = Seat(job, answer_tokens, thinking_tokens, decoding=job.decoding)
        self._running[job.request.id] = seat
        self._running_seen = None
        self._grow(seat, job.computed_tokens)

    def abort(self, job_id: RequestId) -> bool:
        """Forget a request and free its blocks; whether it was here."""
        self._stop_standing()
        self._running_seen = None
        seat = self._running.pop(job_id, None)
        if seat is None:
            seat = self._unwait(job_id)
        if seat is None:
            return False
        self._free(seat)
        self.thought.pop(job_id, None)
        seat.gone = True
        return True

    def apply(self, step: Step, now_s: float) -> Outcome:
        """A whole iteration that ends at `now_s`."""
        self.start(step)
        return self.finish(now_s)

    def start(self, step: Step) -> Iteration:
        """Begin an iteration. Raises ImpossibleStep, and then has changed nothing."""
        self._stop_standing()
        wanted = checked(step, self._running, self._waiting_ids, self.limits, self._kv)
        for job_id in step.promote:
            seat = self._running.get(job_id) or self._waiting_ids[job_id]
            seat.job = promoted(seat.job)
            self._running_seen = self._waiting_seen = None
        for job_id in step.preempt:
            self._preempt(self._running[job_id])
        iteration, victims = make_room(wanted, tuple(self._running.values()), self._kv)
        for seat in victims:
            self._preempt(seat)
        for grant in iteration.grants:
            if grant.seat.blocks == 0:
                self._running[grant.seat.job.request.id] = grant.seat
                self._running_seen = None
                self._unwait(grant.seat.job.request.id)
            self._grow(grant.seat, grant.kv_tokens)
        for seat in iteration.decodes:
            if seat.job.computed_tokens == seat.blocks * self.block_tokens:
                self._grow(seat, seat.job.computed_tokens + 1)
        self._iteration, self._stands_blocks = iteration, step.stands_blocks
        return iteration

    def go_on(self) -> Iteration | None:
        """Begin the last iteration once more, if its step stands and it is news to nobody."""
        if self._standing is None and self._stands_blocks is not None:
            seats = list(self._running.values())
            self._standing = standing(seats, self._stands_blocks, self.block_tokens)
        stretch = self._standing
        if stretch is None or self._waiting or not stretch.left or self.free_blocks < stretch.least_blocks:
            self._stop_standing()
            return None
        self.free_blocks -= stretch.begin()
        self._iteration = stretch.iteration
        return self._iteration

    def shape(self) -> BatchShape:
        """Of the iteration that has begun, as the GPU sees it."""
        return self._iteration.shape() if self._standing is None else self._standing.shape()

    def finish(self, now_s: float) -> Outcome:
        """End the iteration that was started: its tokens are out at `now_s`."""
        if self._standing is not None:
            self._standing.ends_s.append(now_s)
            self._iteration = Iteration()
            return Outcome(self._standing.brought)
        tokens: dict[RequestId, int] = {}
        finished: dict[RequestId, Finish] = {}
        drafted: list[Drafted] = []
        self._running_seen = None
        for seat in self._iteration.decodes:
            if seat.gone:
                continue
            job = seat.job = advance(seat.job, 1, 1, now_s)
            tokens[job.request.id] = 1
            if job.generated_tokens >= seat.news_tokens:
                self._news(seat, now_s, finished)
        for grant in self._iteration.grants:
            seat = grant.seat
            if seat.gone:
                continue
            new_tokens = self._new_tokens(grant, drafted)
            seat.job = advance(seat.job, grant.tokens + max(new_tokens - 1, 0), new_tokens, now_s)
            seat.decoding = seat.job.decoding
            if new_tokens == 0:
                continue
            tokens[seat.job.request.id] = new_tokens
            if seat.job.generated_tokens >= seat.news_tokens:
                self._news(seat, now_s, finished)
        outcome = Outcome(tokens, finished, self._iteration.preempted, drafted)
        self._iteration = Iteration()
        return outcome

    def _settle(self) -> None:
        """Bring jobs and blocks up to the iterations that have ended."""
        if self._standing is not None:
            self._running_seen = None
            self._standing.settle(self.block_tokens, under_way=bool(self._iteration.decodes))

    def _stop_standing(self) -> None:
        """Whatever comes next is another iteration than before."""
        self._settle()
        self._standing = self._stands_blocks = None

    def _news(self, seat: Seat, now_s: float, finished: dict[RequestId, Finish]) -> None:
        """A token of note is out: the answer's last, the thinking's last, or one near its prediction."""
        if seat.job.generated_tokens == seat.answer_tokens:
            finished[seat.job.request.id] = self._leave(seat)
            return
        if seat.ends_thinking():
            seat.job = thinking_ended(seat.job, now_s)
            self.thought[seat.job.request.id] = seat.thinking_tokens
            seat.thinking_tokens = 0
        if self._longer is not None and seat.job.output_tokens_left == 1:
            seat.job = seat.job._replace(output_tokens=self._longer(seat.job))
        seat.look_out()

    def _new_tokens(self, grant: Grant, drafted: list[Drafted]) -> int:
        if not grant.emits:
            return 0
        if grant.drafts == 0:
            return 1
        job = grant.seat.job
        accepted = self._accept(grant.drafts)
        drafted.append(Drafted(job.request.tier, grant.drafts, accepted))
        return min(1 + accepted, grant.seat.answer_tokens - job.generated_tokens)

    def _grow(self, seat: Seat, kv_tokens: int) -> None:
        blocks = growth_blocks(seat, kv_tokens, self._kv)
        self.free_blocks -= blocks
        seat.blocks += blocks

    def _leave(self, seat: Seat) -> Finish:
        request = seat.job.request
        del self._running[request.id]
        self._free(seat)
        self.thought.pop(request.id, None)
        return Finish.LENGTH if seat.answer_tokens >= request.max_output_tokens else Finish.STOP

    def _preempt(self, seat: Seat) -> None:
        del self._running[seat.job.request.id]
        self._running_seen = None
        self._free(seat)
        seat.job = preempted(seat.job)
        seat.decoding = False
        self._wait(seat, started=True)
        self.preemptions += 1

    def _wait(self, seat: Seat, *, started: bool = False) -> None:
        """At its place by arrival; of those that came in one instant, whoever had been started goes first."""
        find = bisect_left if started else bisect_right
        self._waiting.insert(find(self._waiting, _arrival_s(seat), key=_arrival_s), seat)
        self._waiting_ids[seat.job.request.id] = seat
        self._waiting_seen = None

    def _unwait(self, job_id: RequestId) -> Seat | None:
        seat = self._waiting_ids.pop(job_id, None)
        if seat is not None:
            place = bisect_left(self._waiting, _arrival_s(seat), key=_arrival_s)
            del self._waiting[self._waiting.index(seat, place)]
            self._waiting_seen = None
        return seat

    def _free(self, seat: Seat) -> None:
        self.free_blocks += seat.blocks
        seat.blocks = 0


def _arrival_s(seat: Seat) -> float:
    return seat.job.request.arrival_s
