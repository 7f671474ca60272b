"""A picker's metrics. Labels are tiers and fixed words, never chosen by clients."""

from collections.abc import Callable, Iterable
from functools import cache

from penstock_routing.front_metrics import FrontMetrics
from penstock_routing.replicas.link_state import LinkState
from penstock_routing.replicas.replica_set import ReplicaSet
from prometheus_client import Counter, Gauge, Histogram

SECONDS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1)
"""Bounds of the buckets of decisions: most take less than a millisecond."""


class Metrics(FrontMetrics):
    """The metrics of one picker. seconds: duration of each decision."""

    def __init__(self, tiers: Iterable[str], replica_set: ReplicaSet) -> None:
        super().__init__("picker", tiers)
        registry = self.registry
        requests = Counter(
            "penstock_picker_requests",
            "Requests for which endpoints were picked.",
            ["tier"],
            registry=registry,
        )
        endpoints = Counter(
            "penstock_picker_endpoints",
            "Endpoints picked; divided by requests, the mean length of a list.",
            ["tier"],
            registry=registry,
        )
        refused = Counter(
            "penstock_picker_refused",
            "Requests answered with an error, by HTTP status.",
            ["status"],
            registry=registry,
        )
        self._requests, self._endpoints = cache(requests.labels), cache(endpoints.labels)
        self._refused = cache(refused.labels)
        self.seconds = Histogram(
            "penstock_picker_decision_seconds",
            "Duration of one decision.",
            buckets=SECONDS,
            registry=registry,
        )
        self.held_bytes = Gauge(
            "penstock_picker_held_bytes",
            "Bytes of request bodies held now, at most the pool's `bufferBytes`.",
            registry=registry,
        )
        replicas = Gauge(
            "penstock_picker_replicas",
            "Known replicas, by whether they take requests.",
            ["ready"],
            registry=registry,
        )
        self.cached_prefixes.set_function(lambda: len(replica_set.prefixes))
        for ready in (True, False):
            replicas.labels(str(ready).lower()).set_function(_counter(replica_set, ready))

    def picked(self, tier: str, endpoints: int) -> None:
        """Count a request that got endpoints."""
        self._requests(tier).inc()
        self._endpoints(tier).inc(endpoints)

    def refused(self, status: int) -> None:
        """Count a request that was answered with an error."""
        self._refused(str(status)).inc()


def _counter(replica_set: ReplicaSet, ready: bool) -> Callable[[], float]:
    return lambda: sum((link.state is LinkState.READY) == ready for link in replica_set.links)
