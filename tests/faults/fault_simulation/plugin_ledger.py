"""The plug-in's ledger beside a simulated engine, which shows its state as its iterations begin.

What vLLM would have called since the last iteration follows from that, in vLLM's order: new requests, the end
of the step, the end of requests, preemptions, promotions, starts. In a step that the plug-in misses, because
its own code has raised an error, none of this reaches the ledger. It is rebuilt before the next step.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from penstock_core.domain.engine_fields import to_fields
from penstock_core.domain.request import Job, Request
from penstock_core.timing.builtin_models import time_model
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.iteration import Iteration
from penstock_vllm.ledger import EngineLedger, HeldRequest
from penstock_vllm.step_in_progress import StepInProgress, step_in_progress

MODEL = time_model("llama-3-8b-a100")
"""Any time model: durations do not matter here."""

NEAR_S = 1e-6
"""Deadlines differ by less: a request carries the seconds that it has spent, not the time of its arrival."""


@dataclass(slots=True, eq=False)
class VllmRequest:
    """vLLM's request, as far as the ledger reads it. came: the request that it was made of."""

    came: Request
    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    sampling_params: Any
    num_computed_tokens: int = 0
    num_in_flight_tokens: int = 0
    num_output_tokens: int = 0
    num_stale_output_tokens: int = 0
    drop_stale_output: bool = False
    resumable: bool = False

    @property
    def num_tokens(self) -> int:
        """Return the tokens of the prompt and of the answer so far."""
        return self.num_prompt_tokens + self.num_output_tokens


class PluginLedger:
    """Calls a ledger as the plug-in's scheduler does.

    steps: the one that has begun. misses: how many of the next steps the plug-in misses.
    """

    def __init__(self) -> None:
        self.ledger = EngineLedger()
        self.steps: list[StepInProgress] = []
        self.misses = 0
        self._requests: dict[str, Any] = {}
        self._running: list[str] = []
        self._restored: set[str] = set()
        self._trusts = True

    @property
    def running(self) -> list[HeldRequest]:
        """Return the requests that run, in the order in which they were started."""
        return [self.ledger.by_id[id] for id in self._running]

    def begin(self, state: EngineState, started: Iteration, now_s: float) -> bool:
        """Follow the engine to the iteration that has started. Return False where the plug-in misses it."""
        running, waiting = state.running, state.waiting
        jobs = {job.request.id: job for job in (*running, *waiting)}
        missed, self.misses = self.misses > 0, max(self.misses - 1, 0)
        self._trusts &= not missed
        self._forget([id for id, each in self._requests.items() if _is_another(jobs.get(id), each)])
        new = self._arrive(jobs, now_s)
        self._end_step(jobs)
        if self._trusts:
            self._record_end(new, now_s)
        self._forget([id for id in self._requests if id not in jobs])
        if not missed and not self._trusts:
            self._restore(jobs, now_s)
        if self._trusts:
            self._preempt(waiting)
        self._start_step(running, started)
        self._running, self.steps = [job.request.id for job in running], []
        if self._trusts:
            self._record_start(jobs, _tokens(started), now_s)
        return self._trusts

    def differing(self, jobs: Iterable[Job]) -> str:
        """Return the differences between the ledger and the engine; empty if they agree."""
        self.ledger.settle()
        ids = set()
        for job in jobs:
            ids.add(job.request.id)
            held = self.ledger.by_name.get(job.request.id)
            if held is None:
                return f"{job.request.id} is not in the ledger"
            if _progress(held.job) != _progress(job):
                return (
                    f"{job.request.id} is {_progress(held.job)} in the ledger, {_progress(job)} in the engine"
                )
            if job.request.id not in self._restored and abs(held.job.due_s - job.due_s) > NEAR_S:
                return f"{job.request.id} is due at {held.job.due_s} in the ledger, {job.due_s} in the engine"
        left = self.ledger.by_name.keys() - ids
        return f"{sorted(left)} are left in the ledger" if left else ""

    # vLLM's side

    def _arrive(self, jobs: Mapping[str, Job], now_s: float) -> list[Any]:
        new = [_request(job, now_s) for id, job in jobs.items() if id not in self._requests]
        self._requests |= {request.request_id: request for request in new}
        return new

    def _end_step(self, jobs: Mapping[str, Job]) -> None:
        for id, request in self._requests.items():
            request.num_in_flight_tokens = 0
            if id in jobs:
                request.num_output_tokens = jobs[id].generated_tokens

    def _start_step(self, running: Sequence[Job], started: Iteration) -> None:
        """Let the requests' counts include the step that has begun."""
        tokens = _tokens(started)
        for job in running:
            request, of_step = self._requests[job.request.id], tokens.get(job.request.id, 0)
            request.num_computed_tokens, request.num_in_flight_tokens = job.computed_tokens + of_step, of_step

    # The plug-in's side

    def _forget(self, gone: Iterable[str]) -> None:
        for id in gone:
            del self._requests[id]
            if self._trusts:
                self.ledger.drop(self.ledger.by_id[id])

    def _record_end(self, new: Iterable[Any], now_s: float) -> None:
        ledger = self.ledger
        for request in new:
            ledger.add(request, now_s, blocked=False)
        for step in self.steps:
            if step.membership == ledger.membership:
                ledger.advance_all(self.running, now_s)
            else:
                ledger.advance(step.output.num_scheduled_tokens, now_s)

    def _restore(self, jobs: Mapping[str, Job], now_s: float) -> None:
        ran = [id for id in self._running if id in jobs]
        waited = [request for id, request in self._requests.items() if id not in ran]
        self.ledger.restore([self._requests[id] for id in ran], waited, {}, lambda _: True, now_s)
        self._restored, self._trusts = set(jobs), True

    def _preempt(self, waiting: Iterable[Job]) -> None:
        for job in waiting:
            held = self.ledger.by_id[job.request.id]
            if held.running:
                request: Any = held.request
                request.num_computed_tokens = 0
                self.ledger.preempt(held)

    def _record_start(self, jobs: Mapping[str, Job], tokens: dict[str, int], now_s: float) -> None:
        ledger = self.ledger
        for id, job in jobs.items():
            if ledger.by_id[id].job.best_effort and not job.best_effort:
                ledger.promote(ledger.by_id[id], job)
        for held in self.running:
            if not held.running:
                ledger.start(held)
        step = step_in_progress(_output(tokens), ledger.by_id, now_s, MODEL, None)
        of_all = not step.chunks and len(tokens) == len(self._running) == sum(tokens.values())
        self.steps = [step._replace(membership=ledger.membership if of_all else None)] if tokens else []


def _request(job: Job, now_s: float) -> VllmRequest:
    request = job.request
    fields = SimpleNamespace(extra_args=to_fields(job, now_s))
    return VllmRequest(request, request.id, request.prompt_tokens, request.max_output_tokens, fields)


def _is_another(job: Job | None, request: VllmRequest) -> bool:
    """Return whether a new request has the id of a cancelled one."""
    return job is not None and job.request is not request.came


def _tokens(started: Iteration) -> dict[str, int]:
    """Return the tokens of each request in an iteration without draft tokens."""
    tokens = {entry.job.request.id: 1 for entry in started.decodes}
    return tokens | {grant.entry.job.request.id: grant.tokens for grant in started.grants}


def _output(tokens: dict[str, int]) -> Any:
    """Return the step as vLLM has it, as far as it is read."""
    total = sum(tokens.values())
    return SimpleNamespace(
        num_scheduled_tokens=tokens, total_num_scheduled_tokens=total, scheduled_spec_decode_tokens={}
    )


def _progress(job: Job) -> tuple[int, int, bool]:
    computed_tokens = job.computed_tokens if job.unheld_blocks is None else 0
    return computed_tokens, job.generated_tokens, job.best_effort
