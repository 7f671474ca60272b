"""Metrics of each tier's requests: verdicts, durations, and whether targets were met.

Routers and sidecars that serve HTTP count them with their own prefix from the same `Outcome`, so the same
traffic gives the same values. Labels are tiers and fixed words, never chosen by clients. Everything is
counted when a request ends, nothing per token.
"""

from collections.abc import Callable, Iterable
from functools import cache

from penstock_core.timing.time_model import TimeModel
from prometheus_client import CollectorRegistry, Counter, Histogram

from penstock_routing.request.outcome import Ending, Outcome, measured, missed_targets, targets_of

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2, 3, 5, 8, 15, 30, 60, 120, 300)
"""Buckets of TTFT and durations."""
TPOT_SECONDS = (0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2)
"""Buckets of TPOT."""

HOPS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Buckets of hops."""

NOT_COUNTED = frozenset({Ending.CLIENT_GONE, Ending.INVALID})
"""Endings that attainment leaves out, because the client caused them."""


class TierMetrics:
    """Metrics of tiers. prefix: prefix of the metrics' names. tiers: names of tiers; series begin at 0."""

    def __init__(self, prefix: str, tiers: Iterable[str], registry: CollectorRegistry) -> None:
        self._prefix, self._registry = prefix, registry
        self._requests = self._count(
            "requests",
            "Requests ended, by tier, verdict (admitted, best-effort, rejected, none), "
            "reason of the rejection, and how they ended.",
            "tier",
            "verdict",
            "reason",
            "ending",
        )
        self._refused = self._count(
            "refused", "Requests answered before they were sent to any replica, by HTTP status.", "status"
        )
        self._hops = self._histogram(
            "hops", "Replicas that answered a request, including the one that served it.", HOPS
        )
        self._ttft = self._histogram(
            "ttft_seconds", "From reading the request to writing the first token.", SECONDS
        )
        self._tpot = self._histogram(
            "tpot_seconds", "Time per token after the first, as the tier judges it.", TPOT_SECONDS
        )
        self._e2e = self._histogram(
            "e2e_seconds", "From reading the request to the end of the answer.", SECONDS
        )
        self._met = self._count("slo_met", "Requests that met every target of their tier.", "tier")
        self._missed = self._count(
            "slo_missed",
            "Requests that missed their SLO: by each missed target, or rejected, failed, client_slow.",
            "tier",
            "why",
        )
        self._untimed = self._count(
            "untimed_answers",
            "Answers without streaming whose token times the engine does not report: judged by e2e alone.",
            "tier",
        )
        self._judged = self._count("slo_judged", "Requests judged: met and missed.", "tier")
        self._failovers = self._count(
            "failovers",
            "Replicas lost before a request's first byte, after which it was sent to another.",
            "tier",
        )
        for tier in tiers:
            self._met(tier)
            self._judged(tier)

    def refused(self, status: int) -> None:
        """Count a request that was answered with an error before it was placed."""
        self._refused(str(status)).inc()

    def ended(self, outcome: Outcome, model: TimeModel | None) -> bool | None:
        """Count a placed request that has ended. Return whether it met its targets; None if not judged."""
        tier = outcome.tier.name
        self._requests(tier, outcome.verdict, outcome.reason, outcome.ending.value).inc()
        if outcome.failovers:
            self._failovers(tier).inc(outcome.failovers)
        if outcome.hops:
            self._hops(tier).observe(outcome.hops)
        if outcome.ending is Ending.ANSWERED:
            return self._answered(outcome, model)
        return None if outcome.ending in NOT_COUNTED else self._judge(tier, [outcome.ending.value])

    def _answered(self, outcome: Outcome, model: TimeModel | None) -> bool | None:
        tier, durations = outcome.tier.name, measured(outcome)
        self._e2e(tier).observe(durations.e2e_s)
        if durations.ttft_s is not None:
            self._ttft(tier).observe(durations.ttft_s)
        elif not outcome.stream:
            self._untimed(tier).inc()
        if durations.tpot_s is not None:
            self._tpot(tier).observe(durations.tpot_s)
        targets = targets_of(outcome, model)
        return None if targets is None else self._judge(tier, missed_targets(targets, durations))

    def _judge(self, tier: str, missed: list[str]) -> bool:
        self._judged(tier).inc()
        for why in missed:
            self._missed(tier, why).inc()
        if not missed:
            self._met(tier).inc()
        return not missed

    def _histogram(
        self, name: str, documentation: str, buckets: tuple[float, ...]
    ) -> Callable[..., Histogram]:
        """Return a histogram as a function from the tier, which caches each series."""
        metric = f"{self._prefix}_{name}"
        return cache(
            Histogram(metric, documentation, ["tier"], buckets=buckets, registry=self._registry).labels
        )

    def _count(self, name: str, documentation: str, *labels: str) -> Callable[..., Counter]:
        """Return a counter as a function from the labels' values, which caches each series."""
        return cache(Counter(f"{self._prefix}_{name}", documentation, labels, registry=self._registry).labels)
