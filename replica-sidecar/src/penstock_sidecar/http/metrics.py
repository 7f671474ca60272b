"""Metrics and demand of the HTTP interface, by tier: the same as the router's, with the replica's prefix."""

from collections.abc import Iterable

from penstock_core.timing.time_model import TimeModel
from penstock_routing.demand import Demand, VerdictCounters
from penstock_routing.request.byte_budget import ByteBudget
from penstock_routing.request.outcome import Outcome
from penstock_routing.tier_metrics import TierMetrics
from prometheus_client import CollectorRegistry, Counter, Gauge

PREFIX = "penstock_replica_http"


class HttpMetrics:
    """Metrics of requests that reach one replica over HTTP.

    passed_on: rejections after which the gateway tries another replica.
    """

    def __init__(
        self, tiers: Iterable[str], demand: Demand, budget: ByteBudget, registry: CollectorRegistry
    ) -> None:
        self.demand, self._tiers = demand, TierMetrics(PREFIX, tiers, registry)
        self.refused = self._tiers.refused
        registry.register(VerdictCounters(PREFIX, self.demand))
        self.passed_on = Counter(
            f"{PREFIX}_passed_on",
            "Requests rejected here after which the gateway tries another replica.",
            ["tier"],
            registry=registry,
        )
        self.open = Gauge(f"{PREFIX}_open_requests", "Requests in progress.", registry=registry)
        held = Gauge(
            f"{PREFIX}_held_bytes",
            "Bytes of bodies, and of output that clients have not read.",
            registry=registry,
        )
        held.set_function(lambda: budget.held_bytes)

    def ended(self, outcome: Outcome, model: TimeModel) -> None:
        """Count a request that has ended for its client."""
        met = self._tiers.ended(outcome, model)
        if met is not None:
            self.demand.judged(outcome, met)
