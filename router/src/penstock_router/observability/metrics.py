"""A router's metrics. Labels are tiers and the project's own words, never a client's.

Everything is counted when a request ends; nothing is counted per token.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache

from penstock_core.domain.slo import Tier
from penstock_core.timing.time_model import TimeModel
from penstock_routing.applications.token_usage import UsageMetrics
from penstock_routing.demand import Demand
from penstock_routing.front_metrics import FrontMetrics
from penstock_routing.replicas.replica_link import LinkState
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.request.outcome import Ending, Outcome, measured, misses, targets_of
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2, 3, 5, 8, 15, 30, 60, 120, 300)
TPOT_SECONDS = (0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2)

HOPS = (1, 2, 3, 4, 6, 8, 12, 16)

NOT_COUNTED = frozenset({Ending.CLIENT_GONE, Ending.INVALID})
"""Endings that the service is not judged by: attainment leaves them out."""


class Metrics(FrontMetrics):
    """One router's."""

    def __init__(self, tiers: Mapping[str, Tier], replica_set: ReplicaSet) -> None:
        super().__init__("router", tiers)
        registry = self.registry
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
            "hops", "Replicas that answered a request, with the one that served it.", HOPS
        )
        self._ttft = self._histogram("ttft_seconds", "Request read to first token written.", SECONDS)
        self._tpot = self._histogram(
            "tpot_seconds", "Per token after the first, as the tier judges.", TPOT_SECONDS
        )
        self._e2e = self._histogram("e2e_seconds", "Request read to end of the answer.", SECONDS)
        self._met = self._count("slo_met", "Requests that kept every target of their tier.", "tier")
        self._missed = self._count(
            "slo_missed",
            "Requests that did not: which targets (several count each), rejected, failed, client_slow.",
            "tier",
            "why",
        )
        self._untimed = self._count(
            "untimed_answers",
            "Answers, not streamed, whose tokens' times the engine does not report: judged by e2e alone.",
            "tier",
        )
        self._judged = self._count("slo_judged", "Requests judged: met and missed.", "tier")
        self._failovers = self._count(
            "failovers", "Replicas lost before a request's first byte; it was sent to another.", "tier"
        )
        self.held_bytes = Gauge(
            "penstock_router_held_bytes",
            "Bodies, and output that clients have not taken.",
            registry=registry,
        )
        self.open = Gauge("penstock_router_open_requests", "Requests under way.", registry=registry)
        self.held = Gauge(
            "penstock_router_held_requests",
            "Of them, those that wait because no replica is in service.",
            registry=registry,
        )
        self.usage = UsageMetrics(registry)
        registry.register(_Replicas(replica_set))
        registry.register(_Verdicts(self.demand))
        for tier in tiers:
            self._met(tier)
            self._judged(tier)

    def refused(self, status: int) -> None:
        """Count a request that was answered with an error before it was placed."""
        self._refused(str(status)).inc()

    def ended(self, outcome: Outcome, model: TimeModel | None) -> None:
        """Count a placed request that has ended."""
        tier = outcome.tier.name
        self._requests(tier, outcome.verdict, outcome.reason, outcome.ending.value).inc()
        if outcome.failovers:
            self._failovers(tier).inc(outcome.failovers)
        if outcome.hops:
            self._hops(tier).observe(outcome.hops)
        if outcome.ending is Ending.ANSWERED:
            self._answered(outcome, model)
        elif outcome.ending not in NOT_COUNTED:
            self._judge(outcome, [outcome.ending.value])

    def _answered(self, outcome: Outcome, model: TimeModel | None) -> None:
        tier, seen = outcome.tier.name, measured(outcome)
        self._e2e(tier).observe(seen.e2e_s)
        if seen.ttft_s is not None:
            self._ttft(tier).observe(seen.ttft_s)
        elif not outcome.stream:
            self._untimed(tier).inc()
        if seen.tpot_s is not None:
            self._tpot(tier).observe(seen.tpot_s)
        targets = targets_of(outcome, model)
        if targets is None:
            return
        self._judge(outcome, misses(targets, seen))

    def _judge(self, outcome: Outcome, missed: list[str]) -> None:
        tier = outcome.tier.name
        self.demand.judged(outcome, met=not missed)
        self._judged(tier).inc()
        for why in missed:
            self._missed(tier, why).inc()
        if not missed:
            self._met(tier).inc()

    def _histogram(self, name: str, says: str, buckets: tuple[float, ...]) -> Callable[..., Histogram]:
        """Return a histogram by tier, as a function from the tier; a series is looked up once."""
        metric = f"penstock_router_{name}"
        return cache(Histogram(metric, says, ["tier"], buckets=buckets, registry=self.registry).labels)

    def _count(self, name: str, says: str, *labels: str) -> Callable[..., Counter]:
        """Return a counter, as a function from its labels' values; a series is looked up once."""
        return cache(Counter(f"penstock_router_{name}", says, labels, registry=self.registry).labels)


class _Verdicts(Collector):
    """Exports first verdicts. All series begin at 0, so that a rate sees the first one."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand

    def collect(self) -> Iterable[Metric]:
        verdicts = CounterMetricFamily(
            "penstock_router_verdicts",
            "Requests by their first verdict, when it was given: admitted, best-effort, rejected, never.",
            labels=["tier", "verdict"],
        )
        for tier, verdict, requests in self._demand.verdicts():
            verdicts.add_metric([tier, verdict], requests)
        return [verdicts]


class _Replicas(Collector):
    """Exports the state of the replicas at each scrape."""

    def __init__(self, replica_set: ReplicaSet) -> None:
        self._replica_set = replica_set

    def collect(self) -> Iterable[Metric]:
        ready = GaugeMetricFamily(
            "penstock_router_replica_ready", "Whether the replica takes work.", labels=["replica"]
        )
        malformed = CounterMetricFamily(
            "penstock_router_replica_malformed",
            "Messages of the replica that are unusable.",
            labels=["replica"],
        )
        ejected = GaugeMetricFamily(
            "penstock_router_replica_ejected",
            "Whether the replica gets no requests, because it did not answer.",
            labels=["replica"],
        )
        ejections = CounterMetricFamily(
            "penstock_router_ejections", "Times that the replica was ejected.", labels=["replica"]
        )
        stalled = CounterMetricFamily(
            "penstock_router_stalled_requests",
            "Requests ended because no message about them came for far longer than forecast.",
            labels=["replica"],
        )
        replays = GaugeMetricFamily(
            "penstock_router_replays_left",
            "Requests that may still be sent again after a loss, by the retry budget.",
            value=self._replica_set.replays_left,
        )
        for link in self._replica_set.links:
            ejected.add_metric([link.name], float(link.ejection.ejected))
            ejections.add_metric([link.name], link.ejection.total)
            stalled.add_metric([link.name], link.stalled)
            ready.add_metric([link.name], float(link.state is LinkState.READY))
            malformed.add_metric([link.name], link.malformed)
        connected = GaugeMetricFamily(
            "penstock_router_discovery_connected",
            "Whether a change of the replica set would be noticed now.",
            value=float(self._replica_set.connected),
        )
        unread = CounterMetricFamily(
            "penstock_router_discovery_malformed",
            "Objects of the cluster that are unusable.",
            value=self._replica_set.malformed,
        )
        return [ready, ejected, ejections, stalled, replays, malformed, connected, unread]
