"""One request that this replica carries: its life cycle's shell.

What may happen, and what must then be done, is `penstock_core.domain.request_lifecycle`; here is only how:
events into the session's outbox, a task that talks to the engine, one call at the end. Whoever learns of
something that happened calls the method of that name, and it may be anyone: the task itself, the session on
a cancel, the replica when its engine is gone.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

from penstock_core.domain.engine_fields import sequence_ids
from penstock_core.domain.request import Job
from penstock_core.domain.request_lifecycle import ENDS, Do, Event, State, after
from penstock_core.domain.verdict import Reason, Rejected, Verdict
from penstock_proto import replica_pb2 as wire
from penstock_runtime.openai_errors import ApiError

from penstock_sidecar.engine.sse import Usage
from penstock_sidecar.frames.messages import (
    ENGINE_LOST,
    INTERNAL,
    RETURNED,
    failed_event,
    finished_event,
    verdict_event,
)
from penstock_sidecar.frames.outbox import Hurry, Outbox
from penstock_sidecar.requests.client_body import ClientBody

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""What may stand in a header and a log line; routers send no other."""


class Carrier(Protocol):
    """Who has to know how a carried request fares: the replica."""

    def send(self, carried: "Carried") -> asyncio.Task[None]:
        """Start to carry it to the engine and back, when its turn has come."""

    def tokens_out(self, carried: "Carried") -> int:
        """Tokens of it that the engine says are out, where one event may hold several; else 0."""

    def has_passed(self, carried: "Carried", tokens: int) -> None:
        """Tokens of it have passed."""

    def thinking_over(self, carried: "Carried", thinking_tokens: int) -> None:
        """After so many tokens that have passed, its answer proper began."""

    def thinking_tokens(self, carried: "Carried") -> int:
        """Tokens that it thought with before its answer proper; 0 where none is known of."""

    def token_times_s(self, carried: "Carried", tokens: int) -> Sequence[float]:
        """When the tokens of its answer, which was not streamed, came out; empty where that is not known."""

    def has_ended(self, carried: "Carried") -> None:
        """It is over."""


class Owner(Protocol):
    """Who waits for it: its router's session."""

    outbox: Outbox

    def forget(self, carried: "Carried") -> None:
        """It is over."""


class Carried:
    """A request between a router and the engine.

    id: the router's, unique in its session.
    request_id: the client's, where it is one.
    key: ours, unique in the engine.
    job, body: None until its body has been read and found good.
    verdict: None until it is decided.
    first_s, last_s: when its first and its latest output came; of an answer that is not streamed its first
        and last token, where that is known.
    prompt_told: whether the engine has already told how long its prompt is.
    usage: what its answer came to, once it has come whole.
    """

    __slots__ = (
        "_carrier",
        "_events",
        "_owner",
        "_task",
        "arrived_s",
        "body",
        "endpoint",
        "first_s",
        "id",
        "job",
        "key",
        "last_s",
        "prompt_told",
        "request_id",
        "state",
        "tier",
        "tokens",
        "usage",
        "verdict",
    )

    def __init__(self, submit: wire.Submit, key: str, owner: Owner, carrier: Carrier, now_s: float) -> None:
        self.id, self.tier = submit.id, submit.tier
        self.request_id = submit.request_id if _REQUEST_ID.fullmatch(submit.request_id) else key
        self.endpoint = submit.endpoint
        self.key, self.arrived_s = key, now_s
        self.state = State.DECIDING
        self.job: Job | None = None
        self.body: ClientBody | None = None
        self.verdict: Verdict | None = None
        self.first_s = self.last_s = 0.0
        self.prompt_told = False
        self.tokens = self._events = 0
        self.usage: Usage | None = None
        self._owner, self._carrier = owner, carrier
        self._task: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing can happen to it any more."""
        return self.state in ENDS

    @property
    def keys(self) -> tuple[str, ...]:
        """Its answers, as the engine knows them: one, unless it asks for more."""
        return sequence_ids(self.key, self.sequences)

    @property
    def sequences(self) -> int:
        """How many answers it asks for."""
        return 1 if self.body is None else self.body.sequences

    @property
    def jobs(self) -> list[Job]:
        """What admission plans with: a job for each answer."""
        job = self.job
        if job is None:
            return []
        return [job._replace(request=replace(job.request, id=key)) for key in self.keys]

    @property
    def tpot_s(self) -> float:
        """Mean gap between the tokens that have passed; 0 with fewer than two."""
        return (self.last_s - self.first_s) / (self.tokens - 1) if self.tokens > 1 else 0.0

    def invalid(self, error: ApiError) -> None:
        """Its body cannot be served."""
        failed = failed_event(self.id, wire.FAILURE_BAD_REQUEST, error.status, error.body())
        self._happens(Event.INVALID, failed)

    def decided(self, verdict: Verdict) -> None:
        """Its verdict is known."""
        self.verdict = verdict
        refused = isinstance(verdict, Rejected)  # then the router walks on; else it waits for output
        self._owner.outbox.put(
            verdict_event(self.id, verdict), hurry=Hurry.AT_ONCE if refused else Hurry.NONE
        )
        self._happens(Event.REFUSED if refused else Event.ACCEPTED)

    def output(self, data: bytes, tokens: int, now_s: float) -> None:
        """Bytes of the answer, with so many tokens in them, or more where the engine says so."""
        first = self.state is State.WAITING
        if first:
            self.first_s = now_s
        self.last_s = now_s
        self._events += tokens
        tokens = max(self._events, self._carrier.tokens_out(self), self.tokens) - self.tokens
        self.tokens += tokens
        output = wire.Output(data=data, tokens=tokens)
        hurry = Hurry.NONE if not self.streams else Hurry.AT_ONCE if first else Hurry.STEP
        self._happens(Event.OUTPUT, wire.Event(id=self.id, output=output), len(data), hurry)
        self._carrier.has_passed(self, tokens)

    def thinking_over(self, thinking_tokens: int) -> None:
        """After so many tokens its answer proper has begun."""
        self._carrier.thinking_over(self, thinking_tokens)

    def finished(self, usage: Usage) -> None:
        """The engine has closed the answer as it should."""
        self.usage, self.tokens = usage, max(self.tokens, usage.completion_tokens)
        times_s = () if self.streams else self._carrier.token_times_s(self, self.tokens)
        if times_s:
            self.first_s, self.last_s = times_s[0], times_s[-1]
        told = finished_event(
            self.id,
            usage,
            self.first_s - self.arrived_s,
            self.tpot_s,
            thinking_tokens=self._carrier.thinking_tokens(self),
            token_gaps_us=self._gaps_us(times_s),
        )
        self._happens(Event.ENDED, told, hurry=Hurry.NONE if self.streams else Hurry.AT_ONCE)

    def engine_refused(self, status: int, body: bytes) -> None:
        """The engine answered with an error status."""
        failed = failed_event(self.id, wire.FAILURE_ENGINE_REFUSED, status, body)
        self._happens(Event.ENGINE_REFUSED, failed, len(body))

    def engine_full(self) -> None:
        """The engine has no room for it: the router walks on, as after any rejection."""
        refused = verdict_event(self.id, Rejected(Reason.QUEUE_FULL))
        self._happens(Event.REFUSED, refused)

    def engine_lost(self) -> None:
        """The connection broke, or the engine does not answer any more."""
        failed = failed_event(self.id, wire.FAILURE_ENGINE_LOST, ENGINE_LOST.status, ENGINE_LOST.body())
        self._happens(Event.ENGINE_LOST, failed)

    def returned(self) -> None:
        """The replica drains and has not begun with it: the router asks the next one."""
        failed = failed_event(self.id, wire.FAILURE_RETURNED, RETURNED.status, RETURNED.body())
        self._happens(Event.RETURNED, failed)

    def broke(self) -> None:
        """A fault of our own."""
        failed = failed_event(self.id, wire.FAILURE_INTERNAL, INTERNAL.status, INTERNAL.body())
        self._happens(Event.BROKE, failed)

    def cancelled(self) -> None:
        """Nobody waits for it any more."""
        self._happens(Event.CANCELLED)

    async def closed(self) -> None:
        """Wait until its stream at the engine is closed."""
        if self._task is not None:
            await asyncio.wait({self._task})

    def _gaps_us(self, times_s: Sequence[float]) -> list[int]:
        assert self.job is not None
        from_s = self.job.request.arrival_s
        return [max(round((at_s - before_s) * 1e6), 0) for before_s, at_s in pairwise((from_s, *times_s))]

    @property
    def streams(self) -> bool:
        """Whether its client reads along. Otherwise it waits for the end, which output may wait for too."""
        return self.body is not None and self.body.stream

    def _happens(
        self,
        event: Event,
        answer: wire.Event | None = None,
        data_bytes: int = 0,
        hurry: Hurry = Hurry.AT_ONCE,
    ) -> None:
        before = self.state
        self.state, do = after(before, event)
        if do is Do.SEND:
            self._task = self._carrier.send(self)
        elif answer is not None:
            self._owner.outbox.put(answer, data_bytes, hurry)
        if self.state in ENDS and before not in ENDS:
            self._end()

    def _end(self) -> None:
        """Close the engine's stream where somebody else than its own task ends the request."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._owner.forget(self)
        self._carrier.has_ended(self)
