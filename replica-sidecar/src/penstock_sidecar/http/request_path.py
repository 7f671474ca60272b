"""The path of one generating request over HTTP: it is read, submitted, answered and counted.

It is submitted to the same admission as requests of sessions. Nothing is written before its verdict and the
first bytes of its answer, so after a rejection the gateway can try the next replica.
"""

from functools import partial
from random import Random

import structlog
from penstock_core.domain.verdict import Admitted, BestEffort, Reason, Rejected
from penstock_proto import replica_pb2 as wire
from penstock_routing.demand import ADMITTED, BEST_EFFORT
from penstock_routing.replicas.session_writer import submit_fields
from penstock_routing.replicas.upstream_request import End, UpstreamRequest
from penstock_routing.request.byte_budget import BodyBytes, BudgetExceeded, ByteBudget
from penstock_routing.request.engine_body import body_with
from penstock_routing.request.outcome import Ending, Outcome
from penstock_routing.response.answer import answer_headers, write_answer
from penstock_routing.response.client_ending import client_ending
from penstock_routing.response.client_scope import ClientScope
from penstock_routing.response.upstream_error import upstream_error
from penstock_runtime.clock import monotonic
from penstock_runtime.openai_errors import ApiError

from penstock_sidecar.http.attempt_head import AttemptHead
from penstock_sidecar.http.engine_answer import EngineAnswer
from penstock_sidecar.http.http_owner import HttpOwner
from penstock_sidecar.http.intake import HttpAttempt, HttpIntake, IncomingAttempt
from penstock_sidecar.http.metrics import HttpMetrics
from penstock_sidecar.http.rejection import out_of_service, passed_on, rejection
from penstock_sidecar.replica.replica import Replica
from penstock_sidecar.requests.estimates import Estimates
from penstock_sidecar.requests.faults import Faults

log = structlog.get_logger()


class HttpRequestPath:
    """The path of HTTP requests through one replica.

    stream_bytes: most output buffered for one client. budget: bound on the bytes buffered for all requests.
    """

    def __init__(
        self,
        name: str,
        replica: Replica,
        estimates: Estimates,
        *,
        intake: HttpIntake,
        metrics: HttpMetrics,
        faults: Faults,
        stream_bytes: int,
        budget: ByteBudget,
    ) -> None:
        self._name, self._replica, self._estimates, self._intake = name, replica, estimates, intake
        self._metrics, self._faults = metrics, faults
        self._stream_bytes, self._budget = stream_bytes, budget
        self._random = Random()

    async def serve(self, call: HttpAttempt) -> None:
        """Serve one request. Raises ApiError, UpstreamError and ClientGone, before the first byte only."""
        with BodyBytes(self._budget) as body_bytes, self._metrics.open.track_inprogress():
            try:
                incoming = await self._intake.read(call, body_bytes)
            except BudgetExceeded as full:
                raise self._without_room(call, full) from None
            except ApiError as error:
                self._metrics.refused(error.status)
                raise
            await self._answer(call, incoming)

    def _without_room(self, call: HttpAttempt, full: BudgetExceeded) -> ApiError:
        """Count a request whose body this replica cannot buffer, and return the response to it."""
        head, tier = self._intake.head_and_tier(call)
        if not head.tries_next(Reason.QUEUE_FULL):
            self._metrics.refused(full.status)
            return full
        if head.hop == 1:
            self._metrics.demand.arrived(tier.name)
        self._metrics.passed_on.labels(tier.name).inc()
        return passed_on(full)

    async def _answer(self, call: HttpAttempt, incoming: IncomingAttempt) -> None:
        """Submit a request, answer it and count it."""
        request, http = incoming.attempt.request, call.http
        outcome = Outcome(request.tier, request.targets, request.arrival_s, request.stream)
        outcome.hops = incoming.attempt.hop
        if outcome.hops == 1:  # only the first replica counts the arrival
            self._metrics.demand.arrived(request.tier.name)
        try:
            with client_ending(http, outcome):
                async with ClientScope(http) as client:
                    await self._submit(call, incoming, outcome, client)
        finally:
            with self._faults.within("http"):
                self._count(outcome, incoming.head)

    async def _submit(
        self, call: HttpAttempt, incoming: IncomingAttempt, outcome: Outcome, client: ClientScope
    ) -> None:
        bound_bytes = self._stream_bytes if outcome.stream else None
        upstream = UpstreamRequest(1, bound_bytes, call.http.break_slow)
        upstream.use_budget(self._budget)
        submit = wire.Submit(**submit_fields(1, incoming.attempt, monotonic()))
        owner = HttpOwner(upstream, partial(self._accepted, call, incoming, outcome))
        request = self._replica.submit(submit, owner, at_engine=call.at_engine is not None)
        try:
            if call.at_engine is None:
                await self._wait_begun(upstream, outcome, incoming.head)
                headers = answer_headers(call.request_id, outcome, self._name)
                await write_answer(upstream, self._name, outcome, client, headers)
            else:
                answered = partial(self._replica.engine_answer, request)
                with EngineAnswer(call.at_engine, answered, outcome) as answer:
                    await self._wait_ended(upstream, answer, outcome, incoming.head)
        finally:
            request.cancelled()  # unless it has ended
            upstream.release()

    def _accepted(
        self,
        call: HttpAttempt,
        incoming: IncomingAttempt,
        outcome: Outcome,
        verdict: Admitted | BestEffort,
        engine_fields: bytes,
    ) -> None:
        """Count the verdict of an accepted request, and let the engine serve it if it is there."""
        outcome.verdict = ADMITTED if isinstance(verdict, Admitted) else BEST_EFFORT
        self._metrics.demand.decided(outcome)
        if call.at_engine is not None:
            body = body_with(incoming.attempt.request.body, engine_fields)
            headers = answer_headers(call.request_id, outcome, self._name)
            call.at_engine.proceed(body, call.request_id, headers)

    async def _wait_ended(
        self, upstream: UpstreamRequest, answer: EngineAnswer, outcome: Outcome, head: AttemptHead
    ) -> None:
        """Wait for the end of an answer that the engine writes. Raises ApiError or UpstreamError."""
        while upstream.end is None:
            await upstream.changed()
        self._check_end(answer.refusal(upstream.end), outcome, head)
        answer.finished(upstream.end)

    async def _wait_begun(self, upstream: UpstreamRequest, outcome: Outcome, head: AttemptHead) -> None:
        """Wait for a stream's first bytes or the whole answer. Raises ApiError or UpstreamError."""
        while upstream.end is None and not (outcome.stream and upstream.has_output):
            await upstream.changed()
        self._check_end(upstream.end, outcome, head)

    def _check_end(self, end: End | None, outcome: Outcome, head: AttemptHead) -> None:
        """Raise ApiError or UpstreamError if a request has ended without an answer."""
        if isinstance(end, Rejected):
            outcome.verdict, outcome.reason, outcome.ending = "rejected", end.reason.value, Ending.REJECTED
            tries_next, draw = head.tries_next(end.reason), self._random.random()
            raise rejection(outcome.tier.name, self._name, end, draw, tries_next=tries_next)
        if isinstance(end, wire.Failed):
            if end.failure == wire.FAILURE_RETURNED:
                raise self._passed_on(
                    Reason.DRAINING, "is draining and has not begun the request", outcome, head
                )
            if end.failure == wire.FAILURE_ENGINE_LOST and head.replays:
                raise self._passed_on(Reason.ENGINE_DOWN, "lost its engine with the request", outcome, head)
            raise upstream_error(end)

    def _passed_on(self, reason: Reason, what: str, outcome: Outcome, head: AttemptHead) -> ApiError:
        """Return the response to an unserved request, after which the gateway may try another replica."""
        outcome.reason, outcome.ending = reason.value, Ending.REJECTED
        tries_next, draw = head.tries_next(reason), self._random.random()
        return out_of_service(f"replica {self._name} {what}", reason, draw, tries_next=tries_next)

    def _count(self, outcome: Outcome, head: AttemptHead) -> None:
        """Count the end of a request, unless another replica will decide about it."""
        if outcome.ending is not Ending.REJECTED:
            self._metrics.ended(outcome, self._estimates.fitted)
        elif head.tries_next(Reason(outcome.reason)):
            self._metrics.passed_on.labels(outcome.tier.name).inc()
        else:
            self._metrics.demand.decided(outcome, outcome.reason == Reason.NEVER.value)
            self._metrics.ended(outcome, self._estimates.fitted)
