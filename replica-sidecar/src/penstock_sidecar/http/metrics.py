"""Metrics of clients of the HTTP interface, by tier: the router's metrics, under this replica's name."""

from collections.abc import Iterable

from penstock_routing.request.byte_budget import ByteBudget
from penstock_routing.tier_metrics import TierMetrics
from prometheus_client import CollectorRegistry, Counter, Gauge

PREFIX = "penstock_replica_http"


class HttpMetrics:
    """One replica's. passed_on: rejections that the gateway takes to another replica."""

    def __init__(self, tiers: Iterable[str], budget: ByteBudget, registry: CollectorRegistry) -> None:
        self.tiers = TierMetrics(PREFIX, tiers, registry)
        self.passed_on = Counter(
            f"{PREFIX}_passed_on",
            "Requests rejected here while the gateway had another replica to ask.",
            ["tier"],
            registry=registry,
        )
        self.open = Gauge(f"{PREFIX}_open_requests", "Requests under way.", registry=registry)
        held = Gauge(
            f"{PREFIX}_held_bytes", "Bodies, and output that clients have not taken.", registry=registry
        )
        held.set_function(lambda: budget.held_bytes)
