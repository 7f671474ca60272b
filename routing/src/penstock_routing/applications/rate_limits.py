"""Limits of applications: concurrent requests, requests and tokens per minute.

Each router counts every application's usage and rejects requests that exceed a limit by its own count. If the
pool has a Redis, the other requests are also checked against the usage of all routers (`shared_limits`). So
limits apply to all routers together while Redis answers, and to each router separately while it does not.

Rejections and their headers are in OpenAI's format, which OpenAI's clients use to retry.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from penstock_pool import Application
from penstock_pool.application_spec import ApplicationLimits
from penstock_runtime.clock import monotonic
from penstock_runtime.http_request import Header
from penstock_runtime.openai_errors import ApiError
from prometheus_client import CollectorRegistry, Counter, Gauge

from penstock_routing.applications.usage_ledger import (
    Ledger,
    Limit,
    LimitDecision,
    LimitUsage,
    OverLimit,
    Ticket,
)

ERROR_WORDS = {
    Limit.CONCURRENT_REQUESTS: ("requests", "requests at once"),
    Limit.REQUESTS_PER_MINUTE: ("requests", "requests per min"),
    Limit.TOKENS_PER_MINUTE: ("tokens", "tokens per min"),
}
"""OpenAI's type of the error, and the text of its message."""


class PoolLimits(Protocol):
    """Limits over all routers."""

    async def ask(self, application: str, tokens: int) -> LimitDecision | None:
        """Return the decision over all routers; None if Redis does not answer."""

    def ended(self, application: str, ticket: Ticket | None, tokens: int) -> None:
        """Record that an admitted request has ended."""


class LimitMetrics:
    """Metrics of limits."""

    def __init__(self, registry: CollectorRegistry, process: str = "router") -> None:
        self.limited = Counter(
            f"penstock_{process}_limited",
            "Requests rejected because their application has reached a limit.",
            ["application", "limit"],
            registry=registry,
        )
        self.decided_locally = Counter(
            f"penstock_{process}_limits_decided_locally",
            "Requests decided by this process's own count because Redis did not answer.",
            registry=registry,
        )
        self.shared = Gauge(
            f"penstock_{process}_limits_shared",
            "Whether applications' limits apply to all routers together now.",
            registry=registry,
        )


@dataclass(slots=True)
class RateLimitGrant:
    """Admission of a request within its application's limits. headers: headers of its response."""

    headers: list[Header]

    def leave(self, tokens: int) -> None:
        """Record the end of the request and the tokens that it used."""


@dataclass(slots=True)
class _LimitedGrant(RateLimitGrant):
    """Admission of a request that counts against a limit."""

    application: str
    ledger: Ledger
    ticket: Ticket
    shared: PoolLimits | None
    shared_ticket: Ticket | None

    def leave(self, tokens: int) -> None:
        """Replace the estimated tokens by those that were used."""
        self.ledger.leave(monotonic(), self.ticket, tokens)
        if self.shared is not None:
            self.shared.ended(self.application, self.shared_ticket, tokens)


class RateLimits:
    """The limits of applications, as one router applies them.

    shared: limits over all routers; None if they are not shared.
    """

    def __init__(
        self,
        applications: Mapping[str, ApplicationLimits],
        metrics: LimitMetrics,
        shared: PoolLimits | None = None,
    ) -> None:
        self._limits = applications
        self._ledgers = {name: Ledger(limits) for name, limits in applications.items()}
        self._metrics = metrics
        self._shared = shared

    @property
    def shared(self) -> bool:
        """Whether limits apply to all routers together."""
        return self._shared is not None

    def enter_locally(self, application: Application | None, tokens: int) -> RateLimitGrant:
        """Admit a request by the count of this process. Raises ApiError (429)."""
        counted = self._count_locally(application, tokens)
        if counted is None:
            return RateLimitGrant([])
        name, ledger, ticket = counted
        headers = headers_of(self._limits[name], ledger.usage(monotonic()))
        return _LimitedGrant(headers, name, ledger, ticket, None, None)

    async def enter(self, application: Application | None, tokens: int) -> RateLimitGrant:
        """Admit a request. tokens: estimate of those that it will use. Raises ApiError (429)."""
        if self._shared is None:
            return self.enter_locally(application, tokens)
        counted = self._count_locally(application, tokens)
        if counted is None:
            return RateLimitGrant([])
        name, ledger, ticket = counted
        decision = await self._decide_shared(name, ledger, ticket, self._shared)
        if decision is None:
            headers = headers_of(self._limits[name], ledger.usage(monotonic()))
            return _LimitedGrant(headers, name, ledger, ticket, self._shared, None)
        if isinstance(decision.verdict, OverLimit):
            ledger.take_back(monotonic(), ticket)
            raise self._refusal(name, decision.verdict, decision.usage, tokens)
        headers = headers_of(self._limits[name], decision.usage)
        return _LimitedGrant(headers, name, ledger, ticket, self._shared, decision.verdict)

    def _count_locally(
        self, application: Application | None, tokens: int
    ) -> tuple[str, Ledger, Ticket] | None:
        """Count a request of an application; return None if that has no limits. Raises ApiError (429)."""
        ledger = None if application is None else self._ledgers.get(application.name)
        if application is None or ledger is None:
            return None
        name, now_s = application.name, monotonic()
        ticket = ledger.enter(now_s, tokens)
        if isinstance(ticket, OverLimit):
            raise self._refusal(name, ticket, ledger.usage(now_s), tokens)
        return name, ledger, ticket

    async def _decide_shared(
        self, application: str, ledger: Ledger, ticket: Ticket, shared: PoolLimits
    ) -> LimitDecision | None:
        """Return the decision over all routers; None if limits are not shared now."""
        try:
            decision = await shared.ask(application, ticket.tokens)
        except BaseException:
            ledger.take_back(monotonic(), ticket)
            raise
        if decision is None:
            self._metrics.decided_locally.inc()
        return decision

    def _refusal(self, application: str, refused: OverLimit, usage: LimitUsage, tokens: int) -> ApiError:
        self._metrics.limited.labels(application, refused.limit.value).inc()
        return refusal(application, self._limits[application], refused, usage, tokens)


def limits_of(applications: tuple[Application, ...]) -> dict[str, ApplicationLimits]:
    """Return the limits of the applications that have any, by name."""
    return {each.name: each.limits for each in applications if each.limits != ApplicationLimits()}


def refusal(
    application: str, limits: ApplicationLimits, refused: OverLimit, usage: LimitUsage, tokens: int
) -> ApiError:
    """Return the error of a request that exceeds a limit."""
    kind, words = ERROR_WORDS[refused.limit]
    message = (
        f"Rate limit reached for {application} on {words}. Limit: {getattr(limits, refused.limit.value)}."
    )
    if refused.wait_s is None:
        message += f" This request alone may need {tokens}; make its prompt or max_tokens smaller."
        advice = ("x-should-retry", "false")
    else:
        wait_s = max(ceil(refused.wait_s), 1)
        message += f" Please try again in {wait_s} s."
        advice = ("retry-after", str(wait_s))
    headers = tuple((name.decode(), value.decode()) for name, value in headers_of(limits, usage))
    return ApiError(429, message, type=kind, code="rate_limit_exceeded", headers=(advice, *headers))


def headers_of(limits: ApplicationLimits, usage: LimitUsage) -> list[Header]:
    """Return OpenAI's headers for the limits per minute."""
    rows = (
        ("requests", limits.requests_per_minute, usage.requests, usage.requests_reset_s),
        ("tokens", limits.tokens_per_minute, usage.tokens, usage.tokens_reset_s),
    )
    return [
        (f"x-ratelimit-{field}-{kind}".encode(), value.encode())
        for kind, limit, used, reset_s in rows
        if limit is not None
        for field, value in (
            ("limit", str(limit)),
            ("remaining", str(max(limit - used, 0))),
            ("reset", duration(reset_s)),
        )
    ]


def duration(seconds: float) -> str:
    """Return a duration in the format of OpenAI's headers: `120ms`, `7.5s`, `1m0s`."""
    ms = ceil(seconds * 1000)
    if ms < 1000:
        return f"{ms}ms"
    minutes, ms = divmod(ms, 60_000)
    return f"{minutes}m{ms / 1000:g}s" if minutes else f"{ms / 1000:g}s"
