"""Limits of one application on one router, exact for any order of events."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_pool import Application
from penstock_pool.application_spec import ApplicationLimits
from penstock_routing.applications import rate_limits
from penstock_routing.applications.rate_limits import (
    LimitMetrics,
    RateLimitGrant,
    RateLimits,
    duration,
    headers_of,
    limits_of,
    refusal,
)
from penstock_routing.applications.rate_window import SLOTS, Window
from penstock_routing.applications.usage_ledger import (
    Ledger,
    Limit,
    LimitDecision,
    LimitUsage,
    OverLimit,
    Ticket,
)
from penstock_runtime.openai_errors import ApiError
from prometheus_client import CollectorRegistry


def limits(**given: int) -> ApplicationLimits:
    return ApplicationLimits.model_validate(given)


class Taken(NamedTuple):
    at_s: float
    amount: int


moments = st.floats(0, 400, allow_nan=False)
amounts = st.integers(0, 40)


@given(st.lists(st.tuples(moments, amounts), max_size=60), st.integers(1, 100))
def test_no_sixty_seconds_admit_more_than_the_limit(asked: list[tuple[float, int]], limit: int) -> None:
    window, taken = Window(limit), list[Taken]()
    for at_s, amount in sorted(asked):
        if window.wait_s(at_s, amount) == 0:
            window.take(at_s, amount)
            taken.append(Taken(at_s, amount))
    for last in taken:
        assert sum(one.amount for one in taken if last.at_s - SLOTS < one.at_s <= last.at_s) <= limit


@given(st.lists(st.tuples(moments, amounts), max_size=60), st.integers(1, 100), amounts)
def test_a_request_is_admitted_after_retry_after_and_not_before(
    asked: list[tuple[float, int]], limit: int, amount: int
) -> None:
    window, now_s = Window(limit), 0.0
    for at_s, used in sorted(asked):
        window.take(at_s, used)
        now_s = at_s
    wait_s = window.wait_s(now_s, amount)
    if wait_s is None:
        assert amount > limit
    elif wait_s > 0:
        assert window.wait_s(now_s + wait_s + 1e-6, amount) == 0
        window = Window(limit)
        for at_s, used in sorted(asked):
            window.take(at_s, used)
        assert window.wait_s(now_s + wait_s - 0.01, amount) != 0


def test_a_burst_gets_exactly_the_limit_and_the_rest_a_minute_later() -> None:
    window = Window(60)
    assert sum(window.wait_s(0.5, 1) == 0 and window.take(0.5, 1) == 0 for _ in range(100)) == 60
    assert window.wait_s(30.0, 1) == 31.0
    assert window.wait_s(61.0, 60) == 0


def test_unused_tokens_are_given_back_within_the_window() -> None:
    window = Window(100)
    slot = window.take(5.0, 90)
    window.correct(20.0, slot, -80)
    assert window.used(20.0) == 10
    window.correct(70.0, slot, -10)
    assert window.used(70.0) == 0


def test_tokens_used_beyond_the_estimate_count_even_after_the_window() -> None:
    window = Window(100)
    slot = window.take(5.0, 10)
    window.correct(20.0, slot, 40)
    assert (window.used(20.0), window.reset_s(20.0)) == (50, 46.0)
    window.correct(70.0, slot, 15)
    assert (window.used(70.0), window.reset_s(70.0)) == (15, 61.0)
    window.correct(70.0, slot, 1)
    assert window.used(70.0) == 16


def test_a_window_with_all_tokens_returned_equals_a_new_one() -> None:
    window = Window(100)
    window.correct(1.0, window.take(0.0, 7), -7)
    assert window.reset_s(1.0) == 0


def admitted(ledger: Ledger, now_s: float, tokens: Sequence[int]) -> list[Ticket]:
    asked = [ledger.enter(now_s, each) for each in tokens]
    return [ticket for ticket in asked if isinstance(ticket, Ticket)]


def test_the_limit_of_open_requests_is_exact_and_freed_at_an_end() -> None:
    ledger = Ledger(limits(concurrentRequests=3))
    tickets = admitted(ledger, 0.0, [10] * 5)
    assert len(tickets) == 3
    assert ledger.enter(0.0, 1) == OverLimit(Limit.CONCURRENT_REQUESTS, 1.0)
    ledger.leave(0.1, tickets[0], 10)
    assert len(admitted(ledger, 0.1, [1, 1])) == 1


def test_requests_per_minute_count_at_arrival() -> None:
    ledger = Ledger(limits(requestsPerMinute=2))
    for ticket in admitted(ledger, 0.5, [1] * 3):
        ledger.leave(0.6, ticket, 1)
    assert ledger.enter(10.0, 1) == OverLimit(Limit.REQUESTS_PER_MINUTE, 51.0)
    assert len(admitted(ledger, 61.0, [1] * 3)) == 2


def test_tokens_are_reserved_and_settled() -> None:
    ledger = Ledger(limits(tokensPerMinute=100))
    (ticket,) = admitted(ledger, 0.0, [80])
    assert ledger.enter(1.0, 30) == OverLimit(Limit.TOKENS_PER_MINUTE, 60.0)
    ledger.leave(2.0, ticket, 20)
    assert len(admitted(ledger, 2.0, [80, 1])) == 1


def test_a_request_over_the_whole_limit_has_no_retry_after() -> None:
    ledger = Ledger(limits(tokensPerMinute=100, concurrentRequests=1))
    assert ledger.enter(0.0, 101) == OverLimit(Limit.TOKENS_PER_MINUTE, None)
    admitted(ledger, 0.0, [100])
    assert ledger.enter(0.0, 101) == OverLimit(Limit.TOKENS_PER_MINUTE, None)


def test_a_request_refused_by_one_limit_is_removed_from_the_others() -> None:
    ledger = Ledger(limits(concurrentRequests=1, requestsPerMinute=1, tokensPerMinute=10))
    (ticket,) = admitted(ledger, 0.0, [10])
    ledger.take_back(0.1, ticket)
    assert ledger.usage(0.1) == (0, 0, 0, 0)
    assert len(admitted(ledger, 0.1, [10])) == 1


@given(
    st.lists(st.tuples(st.floats(0, 5, allow_nan=False), amounts, st.booleans(), amounts), max_size=80),
    st.integers(1, 5),
    st.integers(1, 20),
    st.integers(1, 200),
)
def test_no_order_of_arrivals_and_ends_exceeds_a_limit(
    steps: list[tuple[float, int, bool, int]], at_once: int, requests: int, tokens: int
) -> None:
    """Each step: a pause, a request's tokens, whether one ends before it, and what that one used at most."""
    ledger = Ledger(limits(concurrentRequests=at_once, requestsPerMinute=requests, tokensPerMinute=tokens))
    now_s, under_way, came = 0.0, list[Ticket](), list[Taken]()
    for pause_s, wanted, ends, used in steps:
        now_s += pause_s
        if ends and under_way:
            ticket = under_way.pop(0)
            ledger.leave(now_s, ticket, min(used, ticket.tokens))
        ticket_or_not = ledger.enter(now_s, wanted)
        if isinstance(ticket_or_not, Ticket):
            under_way.append(ticket_or_not)
            came.append(Taken(now_s, wanted))
        assert len(under_way) <= at_once
        assert sum(now_s - one.at_s < SLOTS for one in came) <= requests
        assert ledger.usage(now_s).tokens <= tokens


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0061, "7ms"), (1, "1s"), (7.66, "7.66s"), (60, "1m0s"), (61.5, "1m1.5s")],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_headers_have_only_the_configured_limits() -> None:
    ledger = Ledger(limits(requestsPerMinute=3, concurrentRequests=9))
    admitted(ledger, 0.0, [50, 50])
    assert headers_of(limits(requestsPerMinute=3, concurrentRequests=9), ledger.usage(0.0)) == [
        (b"x-ratelimit-limit-requests", b"3"),
        (b"x-ratelimit-remaining-requests", b"1"),
        (b"x-ratelimit-reset-requests", b"1m1s"),
    ]


def test_a_refusal_has_retry_after_in_whole_seconds() -> None:
    of = limits(tokensPerMinute=100)
    error = refusal("ide", of, OverLimit(Limit.TOKENS_PER_MINUTE, 6.2), Ledger(of).usage(0.0), 50)
    assert (error.status, error.type, error.code) == (429, "tokens", "rate_limit_exceeded")
    assert error.message == (
        "Rate limit reached for ide on tokens per min. Limit: 100. Please try again in 7 s."
    )
    assert dict(error.headers)["retry-after"] == "7"
    assert dict(error.headers)["x-ratelimit-remaining-tokens"] == "100"


def test_a_permanent_refusal_says_so() -> None:
    of = limits(tokensPerMinute=100)
    error = refusal("ide", of, OverLimit(Limit.TOKENS_PER_MINUTE, None), Ledger(of).usage(0.0), 500)
    assert dict(error.headers)["x-should-retry"] == "false"
    assert "retry-after" not in dict(error.headers)
    assert "may need 500" in error.message


class Others:
    """All routers together, with answers that a test has written."""

    def __init__(self, answer: LimitDecision | BaseException | None) -> None:
        self.answer = answer
        self.asked: list[tuple[str, int]] = []
        self.reported: list[tuple[str, Ticket | None, int]] = []

    async def ask(self, application: str, tokens: int) -> LimitDecision | None:
        self.asked.append((application, tokens))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def ended(self, application: str, ticket: Ticket | None, tokens: int) -> None:
        self.reported.append((application, ticket, tokens))


class Pool:
    """The limits of two applications, of which `web` has none, on a router whose clock tests advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, others: Others | None = None, **given: int) -> None:
        monkeypatch.setattr(rate_limits, "monotonic", lambda: 0.0)
        keys, of = {"file": "x"}, limits(**given).model_dump(by_alias=True)
        self.ide, self.web = (
            Application.model_validate({"name": name, "tier": "chat", "keys": keys, "limits": each})
            for name, each in (("ide", of), ("web", {}))
        )
        self.registry = CollectorRegistry()
        self.others = others
        self.rates = RateLimits(limits_of((self.ide, self.web)), LimitMetrics(self.registry), others)

    async def left(self, tokens: int = 0) -> int:
        """How many more of `ide` are admitted, up to ten."""
        if self.others is not None:
            self.others.answer = None
        for count in range(10):
            try:
                await self.rates.enter(self.ide, tokens)
            except ApiError:
                return count
        return 10

    def counted(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"penstock_router_{name}_total", labels)


USAGE = LimitUsage(7, 2.5, 40, 61.0)


async def test_an_application_without_limits_is_admitted_without_headers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = Others(None)
    pool = Pool(monkeypatch, others, concurrentRequests=1)
    for application in (None, pool.web):
        for _ in range(3):
            admission = await pool.rates.enter(application, 9)
            assert admission.headers == []
            admission.leave(9)
    assert not others.asked
    assert not others.reported
    assert limits_of((pool.ide, pool.web)) == {"ide": limits(concurrentRequests=1)}


async def test_a_request_over_the_local_limit_is_refused_without_asking_redis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = Others(LimitDecision(Ticket(5, 9), USAGE))
    pool = Pool(monkeypatch, others, concurrentRequests=1)
    await pool.rates.enter(pool.ide, 9)
    with pytest.raises(ApiError):
        await pool.rates.enter(pool.ide, 9)
    assert others.asked == [("ide", 9)]
    assert pool.counted("limited", application="ide", limit="concurrent_requests") == 1


async def test_headers_report_the_shared_usage_of_all_routers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool(monkeypatch, Others(LimitDecision(Ticket(5, 9), USAGE)), requestsPerMinute=10)
    assert dict((await pool.rates.enter(pool.ide, 9)).headers)[b"x-ratelimit-remaining-requests"] == b"3"
    assert pool.counted("limits_decided_locally") == 0
    assert pool.others is not None
    pool.others.answer = None
    assert dict((await pool.rates.enter(pool.ide, 9)).headers)[b"x-ratelimit-remaining-requests"] == b"8"
    assert pool.counted("limits_decided_locally") == 1


async def test_a_router_without_redis_counts_no_local_decisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool(monkeypatch, requestsPerMinute=10)
    await pool.rates.enter(pool.ide, 9)
    assert pool.counted("limits_decided_locally") == 0


async def test_a_shared_refusal_removes_the_request_from_the_local_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = LimitDecision(OverLimit(Limit.TOKENS_PER_MINUTE, 6.2), USAGE)
    pool = Pool(monkeypatch, Others(refused), requestsPerMinute=2, tokensPerMinute=100)
    for _ in range(3):
        with pytest.raises(ApiError, match="tokens per min") as error:
            await pool.rates.enter(pool.ide, 90)
    assert dict(error.value.headers)["x-ratelimit-remaining-tokens"] == "60"
    assert pool.counted("limited", application="ide", limit="tokens_per_minute") == 3
    assert await pool.left(tokens=50) == 2


@pytest.mark.parametrize("error", [asyncio.CancelledError(), RuntimeError("a fault of ours")])
async def test_a_request_cancelled_during_the_shared_check_is_removed(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    others = Others(error)
    pool = Pool(monkeypatch, others, concurrentRequests=1, requestsPerMinute=1)
    with pytest.raises(type(error)):
        await pool.rates.enter(pool.ide, 9)
    assert others.reported == []
    assert await pool.left() == 1


@pytest.mark.parametrize(
    "shared", [LimitDecision(Ticket(5, 9), USAGE), None], ids=["decided by all", "alone"]
)
async def test_an_end_is_recorded_in_the_local_and_the_shared_limits(
    monkeypatch: pytest.MonkeyPatch, shared: LimitDecision | None
) -> None:
    others = Others(shared)
    pool = Pool(monkeypatch, others, concurrentRequests=1, tokensPerMinute=100)
    admission: RateLimitGrant = await pool.rates.enter(pool.ide, 90)
    admission.leave(30)
    assert others.reported == [("ide", shared.verdict if shared else None, 30)]
    assert await pool.left(tokens=70) == 1


async def test_an_end_is_recorded_without_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(monkeypatch, None, concurrentRequests=1)
    assert pool.registry.get_sample_value("penstock_router_limits_shared") == 0
    (await pool.rates.enter(pool.ide, 9)).leave(9)
    assert await pool.left() == 1


def test_an_overdrawn_limit_has_zero_left() -> None:
    of = limits(requestsPerMinute=5, tokensPerMinute=30)
    headers = dict(headers_of(of, USAGE))
    assert headers[b"x-ratelimit-remaining-requests"] == headers[b"x-ratelimit-remaining-tokens"] == b"0"
    assert headers[b"x-ratelimit-reset-requests"] == b"2.5s"
    assert headers[b"x-ratelimit-reset-tokens"] == b"1m1s"


@pytest.mark.parametrize(("wait_s", "again_s"), [(0.0, "1"), (0.4, "1"), (1.0, "1"), (1.01, "2")])
def test_no_retry_after_is_zero(wait_s: float, again_s: str) -> None:
    of = limits(requestsPerMinute=1)
    error = refusal("ide", of, OverLimit(Limit.REQUESTS_PER_MINUTE, wait_s), USAGE, 1)
    assert dict(error.headers)["retry-after"] == again_s
