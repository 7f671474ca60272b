"""The path of one generating request, from its head to the last byte of its answer.

    intake ──▶ placement ──▶ response ──▶ account
    head, key, body,    replicas       a stream or     metrics, usage,
    tier, limits        in order       one piece       access log

A request that fails at the intake is counted as refused. Every later request is counted when it ends.
"""

from collections.abc import Callable

import structlog
from penstock_core.timing.time_model import TimeModel
from penstock_routing.applications.token_usage import Usage
from penstock_routing.request.byte_budget import BodyBytes, ByteBudget
from penstock_routing.request.outcome import Outcome
from penstock_routing.response.client_ending import client_ending
from penstock_routing.response.client_scope import ClientScope
from penstock_runtime.clock import monotonic
from penstock_runtime.openai_errors import ApiError

from penstock_router.http.intake import Accepted, IncomingRequest, Intake
from penstock_router.http.response import respond
from penstock_router.moving.movable_answer import Mover
from penstock_router.observability.access_log import AccessLog
from penstock_router.observability.metrics import Metrics
from penstock_router.routing.placement import Placement

log = structlog.get_logger()


class RequestPath:
    """The path of requests through one router.

    time_model: returns the model for slowdown targets; None before any replica has sent one.
    budget: bound on the bytes held over all requests.
    """

    def __init__(
        self,
        *,
        intake: Intake,
        placement: Placement,
        mover: Mover,
        usage: Usage,
        metrics: Metrics,
        time_model: Callable[[], TimeModel | None],
        budget: ByteBudget,
    ) -> None:
        self._intake, self._placement, self._mover = intake, placement, mover
        self._usage, self._metrics = usage, metrics
        self._time_model, self._budget = time_model, budget
        self._access_log = AccessLog()

    async def serve(self, call: IncomingRequest) -> None:
        """Serve one request. Raises ApiError, UpstreamError and ClientGone, before the first byte only."""
        with BodyBytes(self._budget) as body_bytes:
            try:
                accepted = await self._intake.read(call, body_bytes)
            except ApiError as error:
                self._metrics.refused(error.status)
                raise
            await self._answer(call, accepted)

    async def _answer(self, call: IncomingRequest, accepted: Accepted) -> None:
        """Place the request, answer it and count it."""
        request, http = accepted.request, call.http
        outcome = Outcome(request.tier, request.targets, request.arrival_s, request.stream)
        try:
            self._metrics.demand.arrived(request.tier.name)
            with client_ending(http, outcome):
                async with ClientScope(http) as client:
                    placed = await self._placement.place(request, outcome, http.break_slow)
                    await respond(accepted, placed, outcome, client, self._mover)
        finally:
            outcome.ended_s = outcome.ended_s or monotonic()
            self._account(accepted, outcome)

    def _account(self, accepted: Accepted, outcome: Outcome) -> None:
        """Count the request. A fault here is only logged, because the answer is already written."""
        request = accepted.request
        try:
            used_tokens = 0
            try:
                used_tokens = self._usage.ended(accepted.application, outcome, len(request.body))
            finally:
                accepted.admission.leave(used_tokens)
            self._metrics.ended(outcome, self._time_model())
            self._access_log.ended(request.id, outcome)
        except Exception:
            self._metrics.faults.inc()
            log.exception("request not counted", request=request.id)
