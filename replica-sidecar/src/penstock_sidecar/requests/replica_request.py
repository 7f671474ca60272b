"""One request at this replica, from its submit to its last event.

`penstock_core.domain.request_lifecycle` defines its transitions. With each of them this module adds events to
the outbox of the request's session, and cancels the forwarding task if the request ends for another reason.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

from penstock_core.domain.engine_fields import sequence_ids
from penstock_core.domain.request import Job
from penstock_core.domain.request_lifecycle import ENDS, Event, State, after
from penstock_core.domain.verdict import Reason, Rejected, Verdict
from penstock_proto import replica_pb2 as wire
from penstock_proto.sse import EngineUsage
from penstock_runtime.engine.answers import ENGINE_LOST
from penstock_runtime.openai_errors import ApiError

from penstock_sidecar.frames.messages import (
    INTERNAL,
    RETURNED,
    failed_event,
    finished_event,
    verdict_event,
)
from penstock_sidecar.frames.outbox import Urgency
from penstock_sidecar.requests.client_body import ClientBody

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""Request ids that are valid in a header and a log line. Routers send no others."""

LONGEST_GAP_US = 2**32 - 1
"""Longest gap between tokens that an event can contain: 71 minutes."""


class Sink(Protocol):
    """The receiver of a request's events."""

    def output(self, id: int, data: bytes, tokens: int, urgency: Urgency) -> None:
        """Add output."""

    def put(self, event: wire.Event, data_bytes: int = 0, urgency: Urgency = Urgency.STEP) -> None:
        """Add another event."""


class Owner(Protocol):
    """The router's session or the HTTP request that a request belongs to."""

    @property
    def outbox(self) -> Sink:
        """The receiver of its events."""

    def forget(self, request: "ReplicaRequest") -> None:
        """Remove a request that has ended."""


class ReplicaRequest:
    """A request between its router and the engine.

    id: the router's id, unique in its session.
    request_id: the client's id if it is valid in a header; else `key`.
    key: this replica's id, unique in the engine. keys: one for each of the request's answers.
    body, job: None until `planned`.
    learned_delivery_s: time by which the job's targets are less than its client's and which passes between
        this sidecar and the engine's scheduler: the times here contain it.
    verdict: None until `decided`.
    first_s, last_s: times of its first and latest output. Of an answer that is not streamed, times of the
        first and last token if reports have them.
    shown_s: when its router, or this sidecar for it, had its first output from the engine.
    tokens: tokens generated so far.
    usage: the engine's counts, once the answer is complete.
    prompt_reported: whether the engine has reported the length of the prompt.
    takes_ticket: whether its router can send it to the engine directly. at_engine: whether a gateway has sent
        it to the engine's port. direct: whether its answer does not pass this sidecar.
    task: forwards it to the engine; None before it is accepted.
    """

    __slots__ = (
        "_on_end",
        "_owner",
        "_visible_tokens",
        "arrived_s",
        "at_engine",
        "body",
        "direct",
        "endpoint",
        "first_s",
        "id",
        "job",
        "key",
        "keys",
        "last_s",
        "learned_delivery_s",
        "prompt_reported",
        "request_id",
        "shown_s",
        "state",
        "takes_ticket",
        "task",
        "tier",
        "tokens",
        "usage",
        "verdict",
    )

    def __init__(
        self,
        submit: wire.Submit,
        key: str,
        owner: Owner,
        on_end: "Callable[[ReplicaRequest], None]",
        now_s: float,
    ) -> None:
        self.id, self.tier, self.endpoint = submit.id, submit.tier, submit.endpoint
        self.request_id = submit.request_id if _REQUEST_ID.fullmatch(submit.request_id) else key
        self.key, self.arrived_s = key, now_s
        self.keys: tuple[str, ...] = (key,)
        self.state = State.DECIDING
        self.body: ClientBody | None = None
        self.job: Job | None = None
        self.verdict: Verdict | None = None
        self.usage: EngineUsage | None = None
        self.task: asyncio.Task[None] | None = None
        self.first_s = self.last_s = self.shown_s = self.learned_delivery_s = 0.0
        self.tokens = self._visible_tokens = 0
        self.prompt_reported = self.direct = self.at_engine = False
        self.takes_ticket = submit.direct
        self._owner, self._on_end = owner, on_end

    @property
    def ended(self) -> bool:
        """Whether the request has ended."""
        return self.state in ENDS

    @property
    def sequences(self) -> int:
        """The number of answers that it requests."""
        return len(self.keys)

    @property
    def jobs(self) -> list[Job]:
        """A job for each of its answers, as admission plans them."""
        job = self.job
        if job is None:
            return []
        if len(self.keys) == 1:
            return [job]
        return [job._replace(request=replace(job.request, id=key)) for key in self.keys]

    @property
    def streams(self) -> bool:
        """Whether its client reads the answer while it is generated."""
        return self.body is not None and self.body.stream

    @property
    def shows_output(self) -> bool:
        """Whether its answer passes this sidecar while it is generated."""
        return self.streams and not self.direct

    @property
    def first_shown_s(self) -> float | None:
        """When its reader had its first output; None if it had the whole answer at once."""
        return self.shown_s if self.streams and self.shown_s < self.last_s else None

    @property
    def tpot_s(self) -> float:
        """Mean gap between its tokens so far; 0 with fewer than two."""
        return (self.last_s - self.first_s) / (self.tokens - 1) if self.tokens > 1 else 0.0

    def planned(self, body: ClientBody, job: Job, learned_delivery_s: float = 0.0) -> None:
        """Set its body, its job, and the learned part of its delivery time."""
        self.body, self.job, self.learned_delivery_s = body, job, learned_delivery_s
        if body.sequences > 1:
            self.keys = sequence_ids(self.key, body.sequences)

    def invalid(self, error: ApiError) -> None:
        """End the request, because its body is invalid."""
        self._fail(Event.INVALID, wire.FAILURE_BAD_REQUEST, error)

    def decided(self, verdict: Verdict, engine_fields: bytes = b"") -> None:
        """Send the verdict. engine_fields: fields for a router that sends the request to the engine."""
        self.verdict = verdict
        rejected = isinstance(verdict, Rejected)
        event = verdict_event(self.id, verdict)
        event.engine_fields = engine_fields
        acts = rejected or engine_fields  # otherwise the router waits for output
        self._owner.outbox.put(event, urgency=Urgency.IMMEDIATE if acts else Urgency.NONE)
        self._transition(Event.REJECTED if rejected else Event.ACCEPTED)

    def begun_at_router(self, now_s: float) -> None:
        """Record that its router has received output from the engine."""
        self._transition(Event.OUTPUT)
        self.first_s = self.shown_s = now_s

    def read_by_router(self, tokens: int, first_s: float, last_s: float) -> None:
        """Record the complete answer that its router has read, and when its tokens were generated."""
        self.tokens, self.first_s, self.last_s = tokens, first_s, last_s

    def output(self, data: bytes, tokens: int, reported_tokens: int, now_s: float) -> int:
        """Forward output. Return the number of new tokens.

        tokens: visible tokens in the output. reported_tokens: tokens of the answer so far by the engine's
        reports; 0 if they do not show it.
        """
        first = self.state is not State.STREAMING
        if first:
            self._transition(Event.OUTPUT)
            self.first_s = self.shown_s = now_s
        self.last_s = now_s
        self._visible_tokens += tokens
        before, self.tokens = self.tokens, max(self._visible_tokens, reported_tokens, self.tokens)
        new_tokens = self.tokens - before
        urgency = Urgency.NONE if not self.streams else Urgency.IMMEDIATE if first else Urgency.STEP
        self._owner.outbox.output(self.id, data, new_tokens, urgency)
        return new_tokens

    def finished(self, usage: EngineUsage, token_times_s: Sequence[float], thinking_tokens: int) -> None:
        """End the request with a complete answer.

        token_times_s: for an answer that was not streamed, when its tokens were generated; empty if unknown.
        """
        self.usage, self.tokens = usage, max(self.tokens, usage.completion_tokens)
        if token_times_s:
            self.first_s, self.last_s = token_times_s[0], token_times_s[-1]
        event = finished_event(
            self.id,
            usage,
            self.first_s - self.arrived_s,
            self.tpot_s,
            thinking_tokens=thinking_tokens,
            token_gaps_us=self._gaps_us(token_times_s),
        )
        self._transition(Event.ENDED, event, urgency=Urgency.NONE if self.streams else Urgency.IMMEDIATE)

    def engine_refused(self, status: int, body: bytes) -> None:
        """End the request, because the engine answered with an error status."""
        failed = failed_event(self.id, wire.FAILURE_ENGINE_REFUSED, status, body)
        self._transition(Event.ENGINE_REFUSED, failed, len(body))

    def engine_full(self) -> None:
        """End the request as rejected: the engine has no capacity. The router tries the next replica."""
        self._transition(Event.REJECTED, verdict_event(self.id, Rejected(Reason.QUEUE_FULL)))

    def engine_lost(self) -> None:
        """End the request, because the connection broke or the engine no longer responds."""
        self._fail(Event.ENGINE_LOST, wire.FAILURE_ENGINE_LOST, ENGINE_LOST)

    def returned(self) -> None:
        """End the request, which the engine has not begun, because of a drain. The router tries another."""
        self._fail(Event.RETURNED, wire.FAILURE_RETURNED, RETURNED)

    def internal_error(self) -> None:
        """End the request, because of a fault of the sidecar."""
        self._fail(Event.INTERNAL_ERROR, wire.FAILURE_INTERNAL, INTERNAL)

    def cancelled(self) -> None:
        """End the request without an event, because its client or router has disconnected."""
        self._transition(Event.CANCELLED)

    async def closed(self) -> None:
        """Wait until its connection to the engine is closed."""
        if self.task is not None:
            await asyncio.wait({self.task})

    def _gaps_us(self, times_s: Sequence[float]) -> list[int]:
        """Return the gaps before each token, the first one since the arrival."""
        assert self.job is not None
        from_s = self.job.request.arrival_s
        gaps_us = [round((at_s - before_s) * 1e6) for before_s, at_s in pairwise((from_s, *times_s))]
        return [min(max(gap_us, 0), LONGEST_GAP_US) for gap_us in gaps_us]

    def _fail(self, event: Event, failure: wire.Failure.ValueType, error: ApiError) -> None:
        self._transition(event, failed_event(self.id, failure, error.status, error.body()))

    def _transition(
        self,
        event: Event,
        message: wire.Event | None = None,
        data_bytes: int = 0,
        urgency: Urgency = Urgency.IMMEDIATE,
    ) -> None:
        """Move to the next state and send `message` to the owner. Raises ImpossibleEvent."""
        before = self.state
        self.state = after(before, event)
        if message is not None:
            self._owner.outbox.put(message, data_bytes, urgency)
        if self.state in ENDS and before not in ENDS:
            if self.task is not None and self.task is not asyncio.current_task():
                self.task.cancel()
            self._owner.forget(self)
            self._on_end(self)
