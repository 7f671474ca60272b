"""Reads a generating request: head, API key, body, model, tier, and its application's limits.

Checks are ordered by cost: an invalid key is rejected before the body is read. The result is the input of all
later stages.
"""

from typing import NamedTuple

from penstock_pool import Application
from penstock_proto import replica_pb2 as wire
from penstock_routing.applications.api_keys import Keys
from penstock_routing.applications.rate_limits import RateLimitGrant, RateLimits
from penstock_routing.applications.tier_selection import application_of, check_model, own_targets, tier_for
from penstock_routing.applications.token_usage import Usage
from penstock_routing.order_inputs import wants_marks
from penstock_routing.replicas.cached_prefixes import CachedPrefixes
from penstock_routing.request import request_head
from penstock_routing.request.bounded_body import bounded_body
from penstock_routing.request.byte_budget import BodyBytes
from penstock_routing.request.cache_salt import with_application_salt
from penstock_routing.request.generation_request import GenerationRequest
from penstock_routing.request.request_body import BodyReader
from penstock_routing.settings import Settings
from penstock_runtime.clock import monotonic
from penstock_runtime.http_request import HttpRequest
from penstock_runtime.prompt_marks import UNMARKED

from penstock_router.moving.continued_body import requesting_ids


class IncomingRequest(NamedTuple):
    """One HTTP request to an endpoint that generates.

    number: one more than the previous request's at this router.
    """

    http: HttpRequest
    head: request_head.Head
    endpoint: "wire.Endpoint.ValueType"
    request_id: str
    number: int


class Accepted(NamedTuple):
    """A valid request. admission: its application's grant, which must be left when the request has ended."""

    request: GenerationRequest
    application: Application | None
    admission: RateLimitGrant


class Intake:
    """Reads the requests of one router. prefixes: prefixes that replicas have cached."""

    def __init__(
        self,
        settings: Settings,
        keys: Keys,
        reader: BodyReader,
        limits: RateLimits,
        usage: Usage,
        *,
        prefixes: CachedPrefixes,
    ) -> None:
        self._prefixes = prefixes
        self._settings, self._keys = settings, keys
        self._reader, self._limits, self._usage = reader, limits, usage

    async def read(self, call: IncomingRequest, body_bytes: BodyBytes) -> Accepted:
        """Read one request. Raises ClientGone, and ApiError if it is invalid or over a limit."""
        head = call.head
        application = application_of(self._keys, head)
        body = await bounded_body(call.http, head, self._settings, body_bytes)
        arrival_s = monotonic()
        fields = await self._reader.read(call.endpoint, body)
        check_model(self._settings, fields.model)
        tier = tier_for(self._settings, application, head, fields.service_tier)
        targets = own_targets(tier, head)
        expected_tokens = self._usage.expected(application, len(body), fields)
        if self._settings.isolates and application is not None:
            body = with_application_salt(body, application.name, fields.cache_salt)
        marks = await self._reader.marks(body) if wants_marks(self._settings, self._prefixes) else UNMARKED
        movable = requesting_ids(body) if fields.stream and self._settings.max_moves else None
        request = GenerationRequest(
            call.request_id,
            call.endpoint,
            movable or body,
            tier,
            arrival_s,
            targets,
            stream=fields.stream,
            number=call.number,
            movable=movable is not None,
            marks=marks,
            session=request_head.session(head) or fields.prompt_cache_key,
        )
        return Accepted(request, application, await self._limits.enter(application, expected_tokens))
