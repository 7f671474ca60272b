"""Metrics that router and picker have in common, with the process in their names."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from penstock_routing.applications.key_refresh import KeyMetrics
from penstock_routing.applications.rate_limits import LimitMetrics
from penstock_routing.demand import Demand


class FrontMetrics:
    """Metrics that routers and pickers have in common.

    process: `router` or `picker`, in the names of metrics. tiers: names of the tiers.
    """

    def __init__(self, process: str, tiers: Iterable[str]) -> None:
        self.demand = Demand(tiers)
        registry = self.registry = CollectorRegistry(auto_describe=False)
        self.faults = Counter(
            f"penstock_{process}_faults",
            "Requests that failed by an internal error of this process; each has a trace in the log.",
            registry=registry,
        )
        self.redis_connected = Gauge(
            f"penstock_{process}_redis_connected",
            "Whether placements are shared with other routers now.",
            registry=registry,
        )
        self.placements_received = Counter(
            f"penstock_{process}_placements_received",
            "Placements received from other routers, by batch and replica.",
            registry=registry,
        )
        self.placements_malformed = Counter(
            f"penstock_{process}_placements_malformed",
            "Invalid messages on the Redis channel of placements.",
            registry=registry,
        )
        self.cached_prefixes = Gauge(
            f"penstock_{process}_cached_prefixes",
            "Prefixes of prompts that replicas report as cached.",
            registry=registry,
        )
        self.keys, self.limits = KeyMetrics(registry, process), LimitMetrics(registry, process)

    def page(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
