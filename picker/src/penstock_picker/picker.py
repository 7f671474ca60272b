"""Decides about a request from a gateway: API key, body, tier, limits, endpoints.

Both protocols call `pick`. Long bodies are read in threads, so a lock protects counters; the iterator of
request numbers needs none. The gateway passes the client's input unchecked, so any invalid input is answered
with an error in OpenAI's format and never fails the process.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from threading import Lock
from time import perf_counter
from typing import NamedTuple, TypeVar

import structlog
from penstock_pool import Application, Pool
from penstock_proto import replica_pb2 as wire
from penstock_routing.applications.api_keys import Keys
from penstock_routing.applications.rate_limits import PoolLimits, RateLimits, limits_of
from penstock_routing.applications.tier_selection import application_of, check_model, own_targets, tier_for
from penstock_routing.applications.token_usage import Usage, UsageMetrics
from penstock_routing.demand import linked_replicas
from penstock_routing.order_inputs import routing_request, wants_marks
from penstock_routing.replicas.peer_placements import PeerLoad
from penstock_routing.replicas.pool_time_model import PoolTimeModel
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.request import request_head
from penstock_routing.request.byte_budget import ByteBudget
from penstock_routing.request.cache_salt import with_application_salt
from penstock_routing.request.generation_request import GENERATES, GenerationRequest
from penstock_routing.request.request_body import INLINE_BYTES, BodyReader
from penstock_routing.response.error_headers import common_error_headers
from penstock_routing.response.no_replicas import no_replicas
from penstock_routing.settings import Settings
from penstock_runtime.clock import monotonic
from penstock_runtime.http_request import Header
from penstock_runtime.openai_errors import ApiError
from penstock_runtime.prompt_marks import UNMARKED, prompt_marks
from prometheus_client import CollectorRegistry

from penstock_picker.metrics import Metrics
from penstock_picker.pick import Picked, Replicas, pick

MODELS = "/v1/models"

Result = TypeVar("Result")

log = structlog.get_logger()


class Call(NamedTuple):
    """A request as a gateway describes it.

    path: without the query. body: None if the gateway does not send it.
    subset: the only endpoints that the gateway allows; None if it allows all.
    """

    method: str
    path: str
    head: request_head.Head
    body: bytes | None
    subset: frozenset[str] | None = None


class ReadRequest(NamedTuple):
    """A valid request. tokens: estimate of the tokens that it will use."""

    request: GenerationRequest
    application: Application | None
    tokens: int


class Picker:
    """Picks endpoints for requests, as one process.

    budget: bytes of all bodies that it may hold.
    placed: called with each request's first replica and its estimated prompt tokens.
    shared_limits: applications' limits over all pickers and routers, if they share limits.
    """

    def __init__(
        self,
        pool: Pool,
        settings: Settings,
        keys: Keys,
        replica_set: ReplicaSet,
        *,
        first_number: int = 0,
        placed: Callable[[str, int], None] = lambda replica, prompt_tokens: None,
        shared_limits: PoolLimits | None = None,
    ) -> None:
        self._settings, self._keys, self._replica_set = settings, keys, replica_set
        self._placed = placed
        self._time_model = PoolTimeModel(pool, replica_set)
        self.metrics = metrics = Metrics(settings.tiers, replica_set)
        uncounted = UsageMetrics(CollectorRegistry())  # a picker does not see how many tokens a request uses
        self._usage = Usage(pool.spec.applications, settings.max_model_len, uncounted)
        self.budget = ByteBudget(settings.buffer_bytes, "this picker")
        metrics.held_bytes.set_function(lambda: self.budget.held_bytes)
        self._limits = RateLimits(limits_of(pool.spec.applications), metrics.limits, shared_limits)
        self._reader = BodyReader(settings.max_sequences, pool.spec.requests)
        self._numbers, self._lock = count(first_number), Lock()

    @property
    def max_body_bytes(self) -> int:
        """Longest body that is read."""
        return self._settings.max_body_bytes

    @property
    def body_timeout_s(self) -> float:
        """Longest wait for a request to arrive."""
        return self._settings.body_timeout_s

    async def pick(self, call: Call) -> Picked:
        """Return the endpoints of a request. A long body is read in a thread. Raises only ApiError."""
        if self._limits.shared:
            return await self._pick_with_shared_limits(call)
        return await _off_the_loop(self._pick_locally, call)

    def _pick_locally(self, call: Call) -> Picked:
        """Return the endpoints of a request, with limits of this process only. Thread-safe."""
        with self._errors_counted(call):
            read = self._read(call)
            if read is None:
                return self._any_replica(call)
            with self._lock:
                admission = self._limits.enter_locally(read.application, read.tokens)
                admission.leave(read.tokens)  # a picker does not see the end of a request
                return self._pick_and_count(read, call.subset, admission.headers)

    async def _pick_with_shared_limits(self, call: Call) -> Picked:
        """Return the endpoints of a request, with limits shared by all processes."""
        with self._errors_counted(call):
            read = await _off_the_loop(self._read, call)
            if read is None:
                return self._any_replica(call)
            admission = await self._limits.enter(read.application, read.tokens)
            admission.leave(read.tokens)
            with self._lock:
                return self._pick_and_count(read, call.subset, admission.headers)

    def _read(self, call: Call) -> ReadRequest | None:
        """Return the request; None if it does not generate text."""
        head = call.head
        application = application_of(self._keys, head)
        endpoint = GENERATES.get(call.path)
        if endpoint is None or call.method != "POST":
            _check_readable(call, endpoint is not None)
            return None
        request_head.reject_encoding(head)
        service_tier, stream, tokens, body = None, False, 0, call.body
        marks, session = UNMARKED, request_head.session(head)
        if body is not None:
            fields = self._reader.parse(endpoint, body)
            check_model(self._settings, fields.model)
            service_tier, stream = fields.service_tier, fields.stream
            session = session or fields.prompt_cache_key
            if wants_marks(self._settings, self._replica_set.prefixes):
                marks = prompt_marks(self._isolated(body, application, fields.cache_salt))
            tokens = self._usage.expected(application, len(body), fields)
        tier = tier_for(self._settings, application, head, service_tier)
        targets = own_targets(tier, head)
        return ReadRequest(
            GenerationRequest(
                "",
                endpoint,
                body or b"",
                tier,
                monotonic(),
                targets,
                stream=stream,
                number=next(self._numbers),
                marks=marks,
                session=session,
            ),
            application,
            tokens,
        )

    def _isolated(self, body: bytes, application: Application | None, cache_salt: bytes) -> bytes:
        """Return the body as the replica will send it to its engine."""
        if not self._settings.isolates or application is None:
            return body
        return with_application_salt(body, application.name, cache_salt)

    def _any_replica(self, call: Call) -> Picked:
        """Pick a replica for a request that does not generate text."""
        tier = self._settings.tiers[self._settings.default_tier]
        request = GenerationRequest("", wire.ENDPOINT_UNSPECIFIED, b"", tier, monotonic())
        with self._lock:
            return self._pick_endpoints(request, call.subset)

    def refused(self, error: ApiError, head: request_head.Head) -> None:
        """Count an error, and add the headers that all errors have. head: the request's headers."""
        self.metrics.refused(error.status)
        headers = common_error_headers(error.status, request_head.request_id(head), error.headers)
        error.headers = (*error.headers, *headers)

    def demand_page(self) -> bytes:
        """Describe the demand on the pool."""
        with self._lock:
            return self.metrics.demand.page(0, linked_replicas(self._replica_set.links))

    def _pick_and_count(
        self, read: ReadRequest, subset: frozenset[str] | None, limit_headers: Sequence[Header]
    ) -> Picked:
        """Pick endpoints, and count the request in the load of the first replica."""
        tier = read.request.tier.name
        self.metrics.demand.arrived(tier)
        application = "" if read.application is None else read.application.name
        picked = self._pick_endpoints(read.request, subset)._replace(
            application=application, answer_headers=tuple(limit_headers)
        )
        self.metrics.picked(tier, len(picked.endpoints))
        self._replica_set.placed_by_peer(picked.first, PeerLoad(1, picked.uncached_tokens))
        self._placed(picked.first, picked.uncached_tokens)
        return picked

    def _pick_endpoints(self, request: GenerationRequest, subset: frozenset[str] | None) -> Picked:
        replicas = Replicas(self._replica_set.loads(), self._replica_set.http_endpoints())
        routed = routing_request(request, self._time_model, self._settings, self._replica_set.prefixes)
        picked = pick(routed, replicas, self._settings, subset, request.tier.best_effort)
        if picked is None:
            raise no_replicas(self._replica_set.random.random())
        return picked

    @contextmanager
    def _errors_counted(self, call: Call) -> Iterator[None]:
        """Measure the block, count its errors, and raise them as ApiError with the headers of all errors."""
        began_s = perf_counter()
        try:
            yield
        except ApiError as error:
            self.refused(error, call.head)
            raise
        except Exception:
            self.metrics.faults.inc()
            request_id = request_head.request_id(call.head)
            log.exception("request failed", request=request_id, path=call.path[:256])
            named = ((request_head.REQUEST_ID, request_id),)
            raise ApiError(500, "internal error", type="server_error", headers=named) from None
        finally:
            self.metrics.seconds.observe(perf_counter() - began_s)


async def _off_the_loop(function: Callable[[Call], Result], call: Call) -> Result:
    """Call a function that reads the body: in a thread if it is long, or else at once."""
    if len(call.body or b"") > INLINE_BYTES:
        return await asyncio.to_thread(function, call)
    return function(call)


def _check_readable(call: Call, generates: bool) -> None:
    """Raise ApiError (404, 405) unless replicas serve this path and method."""
    path, method = call.path[:256], call.method[:32]
    if generates:
        allowed = "POST"
    elif path == MODELS or path.startswith(MODELS + "/"):
        if method in ("GET", "HEAD"):
            return
        allowed = "GET, HEAD"
    else:
        raise ApiError(404, f"no such path: {path}", code="not_found")
    raise ApiError(
        405, f"{path} takes {allowed}, not {method}", code="method_not_allowed", headers=(("allow", allowed),)
    )
