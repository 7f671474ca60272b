"""The engine's requests as a policy sees them: a job for each of vLLM's requests.

vLLM's requests have their progress; a job also has its SLO and the deadline of its next token. A job is as of
the last step whose end is known; `view` adds the predicted effect of steps in progress. Most steps generate
one token of every running request. They are only counted, and jobs are updated for all of them together on
demand (`settle`) or when anything else happens.

The policy plans most requests. Two kinds are served by vLLM's own rules beside the plan: sessions whose input
is still streaming in, and requests whose KV a connector is loading. They are recorded here too,
because they use memory and time.

A waiting request may be blocked for a while: its grammar is being compiled, or tokens of a step in which it
was preempted are outstanding. Policies do not see it until it is ready.

vLLM's requests are authoritative. After an error, the ledger is rebuilt from them (`restore`).
"""

from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock_core.domain.engine_fields import counts_on_cache, from_fields
from penstock_core.domain.request import Job, RequestId, advance, after_each, preempted

from penstock_vllm.answer_names import AnswerNames
from penstock_vllm.engine import EngineRequest
from penstock_vllm.tickets import ReadFields, unchecked

DraftTokens = Mapping[str, Sequence[int]]
"""Draft tokens of each request in a step, by vLLM's ids."""

POOLED_TOKENS = 1
"""Output tokens of a pooling request: its single result."""


@dataclass(slots=True, eq=False)
class HeldRequest:
    """One request in the engine.

    job: state after the last step whose end is known.
    planned: whether the policy plans it.
    running: whether it holds KV.
    blocked: whether it waits and cannot be started yet.
    drafts_in_progress: draft tokens that steps in progress verify.
    counts_on_cache: whether it was admitted because of its prompt's cached prefix.
    """

    request: EngineRequest
    job: Job
    planned: bool = True
    running: bool = False
    blocked: bool = False
    drafts_in_progress: int = 0
    counts_on_cache: bool = False

    @property
    def known_computed_tokens(self) -> int:
        """Return the tokens whose KV is in memory, without steps in progress."""
        request = self.request
        alive = request.num_in_flight_tokens - request.num_stale_output_tokens
        return max(request.num_computed_tokens - alive, 0)


class EngineLedger:
    """All requests in the engine.

    read_fields: returns the SLO fields of a request.
    by_id: requests by vLLM's ids. by_name: requests by the ids of their jobs.
    blocked: waiting requests that cannot be started yet.
    unplanned: number of requests that the policy does not plan.
    preemptions: number since the engine started.
    uniform_steps: number of steps that generated one token of every running request.
    changes: number of all other changes, including other steps.
    membership: number of those changes that concern the set of requests, of running or of admitted ones.
    """

    def __init__(self, read_fields: ReadFields = unchecked) -> None:
        self._read_fields = read_fields
        self.by_id: dict[str, HeldRequest] = {}
        self.by_name: dict[RequestId, HeldRequest] = {}
        self.blocked: set[HeldRequest] = set()
        self.unplanned = 0
        self.preemptions = self.uniform_steps = self.changes = self.membership = 0
        self._moving: Sequence[HeldRequest] = ()
        self._ends_s: list[float] = []
        self._waiting: list[HeldRequest] = []
        self._ready: tuple[Job, ...] | None = None
        self._names = AnswerNames()

    @property
    def waiting(self) -> list[HeldRequest]:
        """Return the requests without KV, in order of arrival."""
        return self._waiting

    @property
    def ready(self) -> tuple[Job, ...]:
        """Return the jobs that the policy may start, in order of arrival."""
        if self._ready is None:
            self._ready = tuple([held.job for held in self.startable])
        return self._ready

    @property
    def startable(self) -> list[HeldRequest]:
        """Return the requests that the policy may start, in order of arrival."""
        return [held for held in self._waiting if held.planned and not held.blocked]

    def add(self, request: EngineRequest, now_s: float, *, blocked: bool) -> HeldRequest:
        """Add a new request. Its fields are read; if they are invalid, it is best effort."""
        known = self.by_id.get(request.request_id)
        if known is not None:  # the next part of a session's input
            return known
        self._change()
        job, counts = self._job(request, now_s)
        held = HeldRequest(request, job, not request.resumable, blocked=blocked, counts_on_cache=counts)
        self._keep(held)
        self._wait(held)
        return held

    def restore(
        self,
        running: Iterable[EngineRequest],
        waiting: Iterable[EngineRequest],
        drafts: Mapping[str, int],
        can_start: Callable[[EngineRequest], bool],
        now_s: float,
    ) -> None:
        """Rebuild the ledger from vLLM's requests.

        Known jobs continue from their progress. drafts: draft tokens that steps in progress verify, by vLLM's
        ids.
        """
        known = self.by_id
        self.by_id, self.by_name, self.blocked, self.unplanned = {}, {}, set(), 0
        self._moving, self._ends_s, self._waiting, self._ready = (), [], [], None
        self._change()
        for request, runs in (*((one, True) for one in running), *((one, False) for one in waiting)):
            before = known.get(request.request_id)
            job = before.job if before is not None else self._job(request, now_s)[0]
            held = HeldRequest(request, job, drafts_in_progress=drafts.get(request.request_id, 0))
            held.running, held.blocked = runs, not runs and not can_start(request)
            held.planned = not request.resumable and (runs or before is None or before.planned)
            held.job = _current(held, now_s)
            self._keep(held)
            if not runs:
                self._wait(held)

    def drop(self, held: HeldRequest) -> None:
        """Remove a request that has ended, for any reason."""
        if self.by_id.pop(held.request.request_id, None) is None:
            return
        self._change()
        del self.by_name[held.job.request.id]
        self.unplanned -= not held.planned
        self._unwait(held)

    def start(self, held: HeldRequest) -> None:
        """Record that a request holds KV, a part of which may have been cached already."""
        self._change()
        self._unwait(held)
        if not held.running:
            held.running = True
            held.job = held.job._replace(computed_tokens=held.known_computed_tokens)
        self._plan(held, planned=not held.request.resumable)

    def preempt(self, held: HeldRequest) -> None:
        """Record that a request has lost its KV."""
        self._change()
        self.preemptions += 1
        held.job = preempted(held.job)
        held.drafts_in_progress = 0
        held.running = False
        held.blocked = held.request.num_stale_output_tokens > 0 and not held.request.drop_stale_output
        self._wait(held)

    def leave_to_vllm(self, held: HeldRequest) -> None:
        """Leave a request whose KV a connector is loading to vLLM until it runs."""
        self._plan(held, planned=False)

    def begin_drafts(self, drafts: DraftTokens) -> None:
        """Record that a step has begun that verifies these draft tokens."""
        for engine_id, ids in drafts.items():
            self.by_id[engine_id].drafts_in_progress += len(ids)

    def end_drafts(self, drafts: DraftTokens) -> None:
        """Record that the step that verifies these draft tokens has ended."""
        for engine_id, ids in drafts.items():
            if held := self.by_id.get(engine_id):
                held.drafts_in_progress = max(held.drafts_in_progress - len(ids), 0)

    def unblock(self, can_start: Callable[[HeldRequest], bool]) -> None:
        """Check blocked requests again."""
        for held in [held for held in self.blocked if can_start(held)]:
            held.blocked = False
            self.blocked.discard(held)
            self._ready = None

    def promote(self, held: HeldRequest, job: Job) -> None:
        """Record that a best-effort request is admitted."""
        self._change()
        held.job = held.job._replace(best_effort=job.best_effort)
        self._ready = None

    def advance(self, computed: Iterable[str], now_s: float) -> None:
        """Record the end of a step that computed these requests: update their jobs from vLLM's requests."""
        self.settle()
        self.changes += 1
        by_id = self.by_id
        for engine_id in computed:
            held = by_id.get(engine_id)
            if held is None:
                continue
            if held.running and held.planned:
                request, job = held.request, held.job
                known = request.num_computed_tokens - request.num_in_flight_tokens
                if request.num_stale_output_tokens:
                    known = held.known_computed_tokens
                new_tokens = request.num_output_tokens - job.generated_tokens
                held.job = advance(job, known - job.computed_tokens, new_tokens, now_s)
            else:
                _advance_other(held, now_s)
                self._ready = None

    def advance_all(self, running: Sequence[HeldRequest], now_s: float) -> None:
        """Record the end of a step that generated one token of every running request."""
        self._moving = running
        self._ends_s.append(now_s)
        self.uniform_steps += 1

    def settle(self) -> None:
        """Update jobs for the steps that have ended."""
        if self._ends_s:
            jobs = after_each([held.job for held in self._moving], self._ends_s)
            for held, job in zip(self._moving, jobs, strict=True):
                held.job = job
            self._moving, self._ends_s = (), []

    def _change(self) -> None:
        self.settle()
        self.changes += 1
        self.membership += 1

    def _keep(self, held: HeldRequest) -> None:
        self.by_id[held.request.request_id] = self.by_name[held.job.request.id] = held
        self.unplanned += not held.planned

    def _job(self, request: EngineRequest, now_s: float) -> tuple[Job, bool]:
        """Return the request's job with a unique name, and whether it counts on the cache.

        If its fields are invalid, it is best effort.
        """
        sampling, engine_id = request.sampling_params, request.request_id
        longest = max(request.max_tokens if sampling is not None else POOLED_TOKENS, 1)
        named: dict[str, Any] = {
            "engine_id": engine_id,
            "prompt_tokens": request.num_prompt_tokens,
            "max_output_tokens": longest,
        }
        try:
            xargs = (sampling.extra_args if sampling is not None else None) or {}
            fields, from_s, _ = self._read_fields(xargs, engine_id, now_s)
            job = from_fields(fields, now_s=from_s, **named)
            counts = counts_on_cache(fields) and not job.best_effort
        except Exception:  # a client may have written any content
            job, counts = from_fields({}, now_s=now_s, **named), False
        name = self._names.of(job.request.id, self.by_name)
        if name != job.request.id:
            job = job._replace(request=replace(job.request, id=name))
        return job, counts

    def _plan(self, held: HeldRequest, planned: bool) -> None:
        if held.planned != planned:
            self._change()
            held.planned = planned
            self.unplanned += 1 if not planned else -1
            self._ready = None

    def _wait(self, held: HeldRequest) -> None:
        insort(self._waiting, held, key=_arrival)
        if held.blocked:
            self.blocked.add(held)
        self._ready = None

    def _unwait(self, held: HeldRequest) -> None:
        if not held.running and held in self._waiting:
            self._waiting.remove(held)
            self.blocked.discard(held)
            held.blocked = False
            self._ready = None


def _arrival(held: HeldRequest) -> tuple[float, str]:
    return held.job.request.arrival_s, held.request.request_id


def _current(held: HeldRequest, now_s: float) -> Job:
    """Return a job updated to vLLM's request, whatever its progress was."""
    request, job = held.request, held.job
    computed = held.known_computed_tokens if held.running else 0
    new_tokens = request.num_output_tokens - job.generated_tokens
    if new_tokens < 0:
        return job._replace(computed_tokens=computed, generated_tokens=request.num_output_tokens)
    return advance(job, computed - job.computed_tokens, new_tokens, now_s)


def _advance_other(held: HeldRequest, now_s: float) -> None:
    """Update a request that vLLM plans, or that was preempted while it was computed: it holds no KV then."""
    job, request = held.job, held.request
    if held.planned:
        held.job = advance(job, 0, request.num_output_tokens - job.generated_tokens, now_s)
        return
    computed = held.known_computed_tokens if held.running else 0
    held.job = job._replace(computed_tokens=computed, generated_tokens=request.num_output_tokens)
