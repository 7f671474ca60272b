"""The router's public HTTP interface: paths, and headers that all answers share.

Each request is one task. `RequestPath` serves generating requests, `pages` all others.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from penstock_pool import Pool
from penstock_routing.applications.api_keys import Keys
from penstock_routing.applications.rate_limits import PoolLimits, RateLimits, limits_of
from penstock_routing.applications.tier_selection import application_of
from penstock_routing.applications.token_usage import Usage
from penstock_routing.demand import linked_replicas
from penstock_routing.replicas.pool_time_model import PoolTimeModel
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.request import request_head
from penstock_routing.request.byte_budget import ByteBudget
from penstock_routing.request.generation_request import GENERATES
from penstock_routing.request.request_body import BodyReader
from penstock_routing.response.error_answers import ErrorAnswers
from penstock_routing.settings import Settings
from penstock_runtime.client_tls import Contexts
from penstock_runtime.http_request import HttpRequest
from penstock_runtime.openai_errors import ApiError
from penstock_runtime.serving import is_loopback

from penstock_router.direct.direct_answers import DirectAnswers
from penstock_router.direct.engine_access import EngineAccess
from penstock_router.http import pages
from penstock_router.http.intake import IncomingRequest, Intake
from penstock_router.http.request_path import RequestPath
from penstock_router.moving.movable_answer import Mover
from penstock_router.observability.metrics import Metrics
from penstock_router.routing.placement import Placement
from penstock_router.routing.waiting_room import WaitingRoom

ONE_MODEL = "/v1/models/"

Page = Callable[[HttpRequest], Awaitable[None]]
log = structlog.get_logger()


class RouterApp:
    """The HTTP application of one router.

    draining: set when the process is stopping; `/ready` then answers 503.
    first_number: number of the first request. It differs between routers, so they do not choose the same
        replicas.
    admin_url: URL of the admin port if it is on loopback. Clients on this machine find it in /v1/models.
    shared_limits: applications' limits over all routers, if they share limits.
    engine_key: API key for requests that this router sends to engines; empty if they have none.
    engine_tls: for such requests to engines with TLS; None if the router cannot connect to those.
    """

    def __init__(
        self,
        pool: Pool,
        settings: Settings,
        keys: Keys,
        replica_set: ReplicaSet,
        *,
        first_number: int = 0,
        admin_url: str | None = None,
        shared_limits: PoolLimits | None = None,
        engine_key: str = "",
        engine_tls: Contexts | None = None,
    ) -> None:
        self._pool, self._settings, self._replica_set = pool, settings, replica_set
        self.keys = keys
        self._admin_url = admin_url
        self.draining = False
        self._time_model = PoolTimeModel(pool, replica_set)
        self.metrics = metrics = Metrics(settings.tiers, replica_set)
        self._room = WaitingRoom(replica_set, settings.longest_wait_s)
        budget = ByteBudget(settings.buffer_bytes)
        metrics.open.set_function(lambda: self._open)
        metrics.held.set_function(lambda: self._room.waiting)
        metrics.held_bytes.set_function(lambda: budget.held_bytes)
        usage = Usage(pool.spec.applications, settings.max_model_len, metrics.usage)
        limits = RateLimits(limits_of(pool.spec.applications), metrics.limits, shared_limits)
        reader = BodyReader(settings.max_sequences, pool.spec.requests)
        self._access = EngineAccess(replica_set, engine_key, engine_tls)
        placement = Placement(
            settings,
            replica_set,
            demand=metrics.demand,
            room=self._room,
            lost_requests=WaitingRoom(replica_set, settings.move_wait_s, settings.max_inflight),
            time_model=self._time_model,
            budget=budget,
            direct=DirectAnswers(self._access) if settings.direct else None,
        )
        intake = Intake(settings, keys, reader, limits, usage, prefixes=replica_set.prefixes)
        self._request_path = RequestPath(
            intake=intake,
            placement=placement,
            mover=Mover(placement, settings.max_moves, self._time_model, metrics.moves),
            usage=usage,
            metrics=metrics,
            time_model=self._time_model,
            budget=budget,
        )
        self._started_s = int(time.time())
        self._number, self._open = first_number, 0
        self._pages: dict[str, Page] = {
            "/v1/models": self._models,
            "/health": self._health,
            "/ready": self._ready,
        }

    async def __call__(self, http: HttpRequest) -> None:
        """Answer one request. Raises ApiError with the request's id for every error, also internal ones."""
        head = request_head.head_of(http.headers)
        request_id = request_head.request_id(head)
        async with ErrorAnswers(http, request_id, lambda: self._fault(request_id, http.path)):
            endpoint = GENERATES.get(http.path)
            if endpoint is not None and http.method == "POST":
                number, self._number = self._number, self._number + 1
                await self._generate(IncomingRequest(http, head, endpoint, request_id, number))
            else:
                await self._page(http, endpoint is not None)

    def _fault(self, request_id: str, path: str) -> None:
        self.metrics.faults.inc()
        log.exception("request failed", request=request_id, path=path)

    async def _page(self, http: HttpRequest, generates: bool) -> None:
        """Answer a request that does not generate text."""
        path, method = http.path, http.method
        page = self._pages.get(path) or (self._one_model if path.startswith(ONE_MODEL) else None)
        if page is None and not generates:
            raise self._refused(404, f"no such path: {path[:256]}", code="not_found")
        allowed = ("POST",) if generates else ("GET", "HEAD")
        if method == "OPTIONS":
            await http.answer(b"", 204, headers=[(b"allow", ", ".join((*allowed, method)).encode())])
        elif page is None or method not in allowed:
            raise self._refused(
                405,
                f"{path} takes {' and '.join(allowed)}, not {method[:32]}",
                code="method_not_allowed",
                headers=(("allow", ", ".join(allowed)),),
            )
        else:
            await page(http)

    def _refused(self, status: int, message: str, **rest: Any) -> ApiError:
        """Count an error and return it."""
        self.metrics.refused(status)
        return ApiError(status, message, **rest)

    async def _generate(self, call: IncomingRequest) -> None:
        if self._open >= self._settings.max_inflight:
            raise self._refused(
                429,
                f"this router already serves {self._settings.max_inflight} requests (router.maxInflight)",
                type="overloaded",
                code="router_full",
                headers=(("retry-after", "1"),),
            )
        self._open += 1
        try:
            await self._request_path.serve(call)
        finally:
            self._open -= 1

    async def _models(self, http: HttpRequest) -> None:
        application_of(self.keys, request_head.head_of(http.headers))
        await http.answer(pages.models_page(self._model_entry(http)))

    async def _one_model(self, http: HttpRequest) -> None:
        application_of(self.keys, request_head.head_of(http.headers))
        name = http.path.removeprefix(ONE_MODEL)
        await http.answer(pages.model_page(self._model_entry(http), name))

    def _model_entry(self, http: HttpRequest) -> pages.ModelEntry:
        entry = pages.model_entry(self._pool, self._replica_set, self._started_s)
        if self._admin_url is not None and is_loopback(http.client_host):
            entry["admin_url"] = self._admin_url
        return entry

    async def _health(self, http: HttpRequest) -> None:
        await http.answer(self.health_page())

    async def _ready(self, http: HttpRequest) -> None:
        await http.answer(self.ready_page())

    def health_page(self) -> bytes:
        """Return the page that shows that the process runs."""
        return b'{"status":"ok"}'

    def ready_page(self) -> bytes:
        """Return the page of a router that takes requests. Raises ApiError (503) if it does not."""
        return pages.ready_page(self._replica_set, self.draining, self._room.open)

    def close(self) -> None:
        """Close idle connections to engines."""
        self._access.close()

    def pool_page(self) -> bytes:
        """Describe the pool: its tiers, its time model, its replicas."""
        return pages.pool_page(self._pool, self._replica_set, self._time_model())

    def demand_page(self) -> bytes:
        """Describe the demand on the pool."""
        return self.metrics.demand.page(self._room.waiting, linked_replicas(self._replica_set.links))
