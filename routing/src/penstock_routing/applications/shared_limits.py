"""Limits of applications over all routers of a pool, through Redis.

    enter ──▶ queued while a call is in progress ──▶ one call ──▶ decisions
    leave ──▶ corrections, requests in progress ────────────┘

A router has at most one call in progress, so Redis receives its numbers in order, and a request waits for at
most two round trips, however many arrive at once. A call runs one script for each application
(`shared_limits.lua`), which decides atomically, by the clock of Redis.

A router reports its requests in progress as a number, not as changes, so errors do not accumulate. The number
is valid for `LEASE_S`, so a crashed router occupies nothing for longer. Keys without usage expire.

While Redis is unavailable or slow, `ask` returns None, and each router's own limits apply. A call that timed
out may still have been counted, so limits may be too strict for a minute, but never too loose.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from secrets import token_hex

import structlog
from penstock_pool.application_spec import ApplicationLimits
from penstock_runtime.clock import monotonic
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from penstock_routing.applications.usage_ledger import Limit, LimitDecision, LimitUsage, OverLimit, Ticket
from penstock_routing.connections.backoff import Backoff
from penstock_routing.connections.cancellation import raise_if_cancelled
from penstock_routing.connections.redis_client import redis_client

ANSWER_S = 0.25
"""Longest time of a call. A request waits for two at most; then its router decides by its own count."""

CONNECT_S = 2.0
"""Longest time to connect. No request waits for it."""

LEASE_S = 15.0
"""How long a router's requests in progress count after its last call."""

RENEW_S = LEASE_S / 3

MOST_QUERIES = 256
"""Most requests of one application in one call. The others go with the next call."""

SCRIPT = files(__package__).joinpath("shared_limits.lua").read_bytes()
LIMITS = tuple(Limit)
log = structlog.get_logger()


@dataclass(eq=False, slots=True)
class _Query:
    tokens: int
    answer: "asyncio.Future[LimitDecision | None]"


@dataclass(slots=True)
class _ApplicationUse:
    """One application's requests through this router, to be reported to Redis.

    open: requests in progress. reported: the last value sent to Redis, at `reported_s`.
    queries: requests that wait for a decision. corrections: changes of tokens, by slot.
    """

    limits: ApplicationLimits
    open: int = 0
    reported: int = 0
    reported_s: float = 0.0
    queries: list[_Query] = field(default_factory=list)
    corrections: dict[int, int] = field(default_factory=dict)

    def due(self, now_s: float) -> bool:
        renew = self.open > 0 and now_s - self.reported_s >= RENEW_S
        return bool(self.queries or self.corrections) or self.open != self.reported or renew


class SharedLimits:
    """Applies limits over all routers through Redis, on behalf of one router.

    url: returns the URL of Redis; called for each connection, as passwords are renewed. Raises OSError.
    prefix: prefix of this pool's keys. limits: limits of the applications that have any.
    connected: whether limits apply to all routers together now.
    """

    def __init__(
        self, url: Callable[[], str], prefix: str, limits: Mapping[str, ApplicationLimits], backoff: Backoff
    ) -> None:
        self.connected = False
        self._url, self._prefix, self._backoff = url, prefix, backoff
        self._uses = {application: _ApplicationUse(of) for application, of in limits.items()}
        self._router_id = token_hex(8)
        self._due = asyncio.Event()
        self._unavailable = False

    async def ask(self, application: str, tokens: int) -> LimitDecision | None:
        """Return the decision about a request; None if Redis is unavailable.

        tokens: estimate of those that it will use. Unless it is rejected, `ended` must be called later.
        """
        use = self._uses[application]
        if not self.connected:
            use.open += 1
            return None
        ask = _Query(tokens, asyncio.get_running_loop().create_future())
        use.queries.append(ask)
        self._due.set()
        try:
            return await ask.answer
        except asyncio.CancelledError:
            if not ask.answer.cancelled():  # Redis has decided, but nobody reads the decision
                self._return_admission(application, ask.answer.result())
            raise

    def ended(self, application: str, ticket: Ticket | None, tokens: int) -> None:
        """Record the end of a request and the tokens that it used. ticket: None if Redis did not decide."""
        use = self._uses[application]
        use.open -= 1
        if ticket is not None and tokens != ticket.tokens:
            _correct(use, ticket.slot, tokens - ticket.tokens)
        self._due.set()

    def _return_admission(self, application: str, answer: LimitDecision | None) -> None:
        verdict = None if answer is None else answer.verdict
        if not isinstance(verdict, OverLimit):
            self.ended(application, verdict, 0)

    async def run(self) -> None:
        """Send reports and queries until cancelled."""
        while True:
            try:
                await self._connection()
            except Exception as error:  # any error: each router's own limits apply
                raise_if_cancelled()
                why = f"{type(error).__name__}: {error}"
            if not self._unavailable:  # log once for each outage, not for each attempt
                log.warning("limits are not shared", why=why, meanwhile="each router's own limits hold")
                self._unavailable = True
            await asyncio.sleep(self._backoff.wait_s())

    async def _connection(self) -> None:
        redis = redis_client(
            self._url(),
            socket_connect_timeout=CONNECT_S,
            socket_timeout=CONNECT_S,
            retry=Retry(NoBackoff(), 0),  # a repeated call would count twice
        )
        async with redis:
            async with asyncio.timeout(CONNECT_S):
                script = str(await redis.script_load(SCRIPT))
            log.info("limits are shared", applications=len(self._uses))
            self._backoff.reset()
            self.connected, self._unavailable = True, False
            try:
                while True:
                    await self._call(redis, script)
                    raise_if_cancelled()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(RENEW_S):
                            await self._due.wait()
            finally:
                self.connected = False
                for use in self._uses.values():
                    queries, use.queries = use.queries, []
                    _decide_locally(use, queries)

    async def _call(self, redis: Redis, script: str) -> None:
        """Send one call with all pending reports and queries."""
        self._due.clear()
        now_s = monotonic()
        due = {name: use for name, use in self._uses.items() if use.due(now_s)}
        if not due:
            return
        pipeline = redis.pipeline(transaction=False)
        sent: dict[str, list[_Query]] = {}
        for name, use in due.items():
            queries, use.queries = use.queries[:MOST_QUERIES], use.queries[MOST_QUERIES:]
            corrections, use.corrections = use.corrections, {}
            use.reported, use.reported_s, sent[name] = use.open, now_s, queries
            arguments = script_arguments(
                self._router_id, use.open, use.limits, corrections, [a.tokens for a in queries]
            )
            pipeline.evalsha(script, 1, f"{self._prefix}:{name}", *arguments)
        try:
            async with asyncio.timeout(ANSWER_S):
                replies = await pipeline.execute()
            for name, reply in zip(sent, replies, strict=True):
                self._decided(due[name], sent[name], reply)
        finally:
            for name, queries in sent.items():
                _decide_locally(due[name], queries)

    def _decided(self, use: _ApplicationUse, queries: list[_Query], reply: Sequence[int]) -> None:
        slot, usage = int(reply[0]), usage_of(reply)
        for ask, code, wait_ms in zip(queries, reply[5::2], reply[6::2], strict=True):
            admitted = code == 0
            use.reported += admitted
            if not ask.answer.done():
                use.open += admitted
                verdict = Ticket(slot, ask.tokens) if admitted else over_limit_of(code, wait_ms)
                ask.answer.set_result(LimitDecision(verdict, usage))
            elif admitted:  # it was cancelled meanwhile
                _correct(use, slot, -ask.tokens)
        if use.due(monotonic()):
            self._due.set()


def script_arguments(
    router: str,
    open_requests: int,
    limits: ApplicationLimits,
    corrections: Mapping[int, int],
    queries: Sequence[int],
    *,
    now_ms: int | str = "",
) -> list[int | str]:
    """Return the script's arguments, in its order."""
    most = (limits.concurrent_requests, limits.requests_per_minute, limits.tokens_per_minute)
    return [
        router,
        open_requests,
        int(LEASE_S * 1000),
        *(-1 if limit is None else limit for limit in most),
        now_ms,
        len(corrections),
        *(number for correction in corrections.items() for number in correction),
        *queries,
    ]


def usage_of(reply: Sequence[int]) -> LimitUsage:
    """Return the usage in the script's reply."""
    _, requests, requests_reset_ms, tokens, tokens_reset_ms = reply[:5]
    return LimitUsage(requests, requests_reset_ms / 1000, tokens, tokens_reset_ms / 1000)


def over_limit_of(code: int, wait_ms: int) -> OverLimit:
    """Return the rejection in the script's reply."""
    return OverLimit(LIMITS[code - 1], None if wait_ms < 0 else wait_ms / 1000)


def _decide_locally(use: _ApplicationUse, queries: Sequence[_Query]) -> None:
    """End queries without a decision of Redis: the router decides by its own limits."""
    for ask in queries:
        if not ask.answer.done():
            use.open += 1
            ask.answer.set_result(None)


def _correct(use: _ApplicationUse, slot: int, change: int) -> None:
    use.corrections[slot] = use.corrections.get(slot, 0) + change
