"""Reads a generating request from a gateway: head, body, tier, targets.

A picker has resolved the tier. If the gateway continues without a picker, the tier follows from the
application whose key the gateway has checked, as in the router. In a pool with applications, a request with
neither gets no targets and is served best effort at most.
"""

from typing import NamedTuple

from penstock_core.domain.slo import Tier
from penstock_core.routing.attempts import Backup
from penstock_pool import Application, Pool
from penstock_proto import replica_pb2 as wire
from penstock_routing.applications.tier_selection import check_model, own_targets, select_tier, tier_for
from penstock_routing.replicas.session_writer import Attempt
from penstock_routing.request import request_head
from penstock_routing.request.bounded_body import bounded_body
from penstock_routing.request.byte_budget import BodyBytes
from penstock_routing.request.cache_salt import with_application_salt
from penstock_routing.request.generation_request import GenerationRequest
from penstock_routing.request.request_body import BodyReader
from penstock_routing.settings import Settings
from penstock_runtime.clock import monotonic
from penstock_runtime.http_request import HttpRequest

from penstock_sidecar.http.attempt_head import AttemptHead, attempt_head
from penstock_sidecar.http.engine_call import EngineCall


class HttpAttempt(NamedTuple):
    """One HTTP request to an endpoint that generates. at_engine: set if it has reached the engine's port."""

    http: HttpRequest
    head: request_head.Head
    endpoint: "wire.Endpoint.ValueType"
    request_id: str
    at_engine: EngineCall | None = None


class IncomingAttempt(NamedTuple):
    """A valid request. head: the gateway's headers of this attempt."""

    attempt: Attempt
    head: AttemptHead


class HttpIntake:
    """Reads the requests that reach one replica over HTTP."""

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self._settings = settings
        self._applications = {each.name: each for each in pool.spec.applications}
        self._reader = BodyReader(settings.max_sequences, pool.spec.requests)

    def head_and_tier(self, call: HttpAttempt) -> tuple[AttemptHead, Tier]:
        """Read the headers of an attempt, and the tier that they name. Raises ApiError."""
        head = attempt_head(call.head, self._settings.max_hops)
        return head, self._tier(head, call.head, None)

    async def read(self, call: HttpAttempt, body_bytes: BodyBytes) -> IncomingAttempt:
        """Read one request. Raises ClientGone, BudgetExceeded, and ApiError if it is invalid."""
        attempt = attempt_head(call.head, self._settings.max_hops)
        body = await bounded_body(call.http, call.head, self._settings, body_bytes)
        read_s = monotonic() if call.at_engine is None else call.at_engine.read_s
        arrival_s = read_s - attempt.spent_s
        fields = await self._reader.read(call.endpoint, body)
        check_model(self._settings, fields.model)
        tier = self._tier(attempt, call.head, fields.service_tier)
        targets = own_targets(tier, call.head)
        if self._settings.isolates:  # requests without an application share no cache with others
            body = with_application_salt(body, attempt.application or "", fields.cache_salt)
        request = GenerationRequest(
            call.request_id, call.endpoint, body, tier, arrival_s, targets, stream=fields.stream
        )
        return IncomingAttempt(Attempt(request, attempt.hop, self._best_effort(attempt, tier)), attempt)

    def _tier(self, attempt: AttemptHead, head: request_head.Head, service_tier: str | None) -> Tier:
        if attempt.picked:
            return select_tier(self._settings, None, request_head.tier_name(head), service_tier)
        return tier_for(self._settings, self._application(attempt), head, service_tier)

    def _application(self, attempt: AttemptHead) -> Application | None:
        return self._applications.get(attempt.application or "")

    def _best_effort(self, attempt: AttemptHead, tier: Tier) -> bool:
        """Return whether the request may only be served best effort."""
        if self._applications and not attempt.picked and self._application(attempt) is None:
            return True
        backup = self._settings.backup is Backup.BEST_EFFORT and not tier.best_effort
        return attempt.backup and backup
