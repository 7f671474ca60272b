"""One application's limits and its usage through this router. Pure.

A request counts from its admission: as one concurrent request until it ends, as one request of this minute,
and with its estimated tokens. At its end the tokens are corrected to its actual usage, in the second of its
admission if that still counts. Tokens beyond the estimate always count.
"""

from enum import StrEnum
from math import inf
from typing import NamedTuple

from penstock_pool.application_spec import ApplicationLimits

from penstock_routing.applications.rate_window import Window

RETRY_S = 1.0
"""Retry-After of a request beyond the concurrent ones, as it is unknown when another one ends."""


class Limit(StrEnum):
    """The limit that a request exceeds, as metrics name it."""

    CONCURRENT_REQUESTS = "concurrent_requests"
    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"


class OverLimit(NamedTuple):
    """Rejection by a limit. wait_s: until a retry may succeed; None if the request alone is too large."""

    limit: Limit
    wait_s: float | None


class LimitUsage(NamedTuple):
    """Usage under the limits per minute. requests_reset_s, tokens_reset_s: time until none of it counts."""

    requests: int
    requests_reset_s: float
    tokens: int
    tokens_reset_s: float


class Ticket(NamedTuple):
    """An admission. slot: second in which its tokens count."""

    slot: int
    tokens: int


class LimitDecision(NamedTuple):
    """A decision by the usage of all routers."""

    verdict: Ticket | OverLimit
    usage: LimitUsage


class Ledger:
    """The usage of one application through one router."""

    def __init__(self, limits: ApplicationLimits) -> None:
        self._max_concurrent = limits.concurrent_requests or inf
        self._requests = Window(limits.requests_per_minute or inf)
        self._tokens = Window(limits.tokens_per_minute or inf)
        self._open = 0

    def enter(self, now_s: float, tokens: int) -> Ticket | OverLimit:
        """Admit a request if it is within every limit. tokens: estimate of those that it will use."""
        refused = self._refused(now_s, tokens)
        if refused is not None:
            return refused
        self._open += 1
        self._requests.take(now_s, 1)
        return Ticket(self._tokens.take(now_s, tokens), tokens)

    def leave(self, now_s: float, ticket: Ticket, tokens: int) -> None:
        """Record the end of the request and the tokens that it used."""
        self._open -= 1
        self._tokens.correct(now_s, ticket.slot, tokens - ticket.tokens)

    def take_back(self, now_s: float, ticket: Ticket) -> None:
        """Undo the admission of a request that is not served."""
        self.leave(now_s, ticket, 0)
        self._requests.correct(now_s, ticket.slot, -1)

    def usage(self, now_s: float) -> LimitUsage:
        """Return the usage of the last minute."""
        return LimitUsage(
            self._requests.used(now_s),
            self._requests.reset_s(now_s),
            self._tokens.used(now_s),
            self._tokens.reset_s(now_s),
        )

    def _refused(self, now_s: float, tokens: int) -> OverLimit | None:
        if tokens > self._tokens.limit:
            return OverLimit(Limit.TOKENS_PER_MINUTE, None)
        if self._open >= self._max_concurrent:
            return OverLimit(Limit.CONCURRENT_REQUESTS, RETRY_S)
        if wait_s := self._requests.wait_s(now_s, 1):
            return OverLimit(Limit.REQUESTS_PER_MINUTE, wait_s)
        if wait_s := self._tokens.wait_s(now_s, tokens):
            return OverLimit(Limit.TOKENS_PER_MINUTE, wait_s)
        return None
