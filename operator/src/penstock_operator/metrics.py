"""The operator's Prometheus metrics. No label names a pool, because there may be thousands."""

from collections import Counter as Count
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from penstock_operator.manifests.manifest import Manifest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Buckets of durations."""


class OperatorMetrics:
    """The metrics of one operator, with their own registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"penstock_operator_{name}", help_text, labels, registry=registry)

        def gauge(name: str, help_text: str, *labels: str) -> Gauge:
            return Gauge(f"penstock_operator_{name}", help_text, labels, registry=registry)

        self.reconcile = Histogram(
            "penstock_operator_reconcile_seconds",
            "Duration of one reconciliation of one pool.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.actions = counter(
            "actions_total", "Objects applied, deleted or left unchanged.", "kind", "reason", "end"
        )
        self.errors = counter("errors_total", "Failed reconciliations, by failure.", "failure")
        self.status_writes = counter("status_writes_total", "Status updates written.")
        self.events = counter("events_total", "Kubernetes Events posted.", "reason")
        self.pools = gauge("pools", "Pools by condition.", "condition", "status")
        self.waiting = gauge("queue_length", "Pools that wait for reconciliation.")
        self.leading = gauge("leading", "1 while this operator is the leader, else 0.")

    def count_pools(self, pools: Iterable[Manifest]) -> None:
        """Set the number of pools by condition."""
        counts = Count(
            (condition["type"], condition["status"])
            for pool in pools
            for condition in pool.get("status", {}).get("conditions", ())
        )
        self.pools.clear()
        for (type_, status), number in counts.items():
            self.pools.labels(type_, status).set(number)
