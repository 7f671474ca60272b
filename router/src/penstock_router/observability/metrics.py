"""A router's metrics."""

from collections.abc import Iterable, Mapping

from penstock_core.domain.slo import Tier
from penstock_core.timing.time_model import TimeModel
from penstock_routing.applications.token_usage import UsageMetrics
from penstock_routing.demand import VerdictCounters
from penstock_routing.front_metrics import FrontMetrics
from penstock_routing.replicas.link_state import LinkState
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.request.outcome import Outcome
from penstock_routing.tier_metrics import TierMetrics
from prometheus_client import Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock_router.observability.move_metrics import MoveMetrics


class Metrics(FrontMetrics):
    """The metrics of one router."""

    def __init__(self, tiers: Mapping[str, Tier], replica_set: ReplicaSet) -> None:
        super().__init__("router", tiers)
        registry = self.registry
        self._tiers = TierMetrics("penstock_router", tiers, registry)
        self.refused = self._tiers.refused
        self.held_bytes = Gauge(
            "penstock_router_held_bytes",
            "Bytes of bodies, and of output that clients have not read.",
            registry=registry,
        )
        self.open = Gauge("penstock_router_open_requests", "Requests in progress.", registry=registry)
        self.held = Gauge(
            "penstock_router_held_requests",
            "Requests that wait because no replica is in service.",
            registry=registry,
        )
        self.usage = UsageMetrics(registry)
        self.moves = MoveMetrics(registry)
        self.cached_prefixes.set_function(lambda: len(replica_set.prefixes))
        registry.register(_Replicas(replica_set))
        registry.register(VerdictCounters("penstock_router", self.demand))

    def ended(self, outcome: Outcome, model: TimeModel | None) -> None:
        """Count a placed request that has ended."""
        met = self._tiers.ended(outcome, model)
        if met is not None:
            self.demand.judged(outcome, met)


class _Replicas(Collector):
    """Exports the state of the replicas at each scrape."""

    def __init__(self, replica_set: ReplicaSet) -> None:
        self._replica_set = replica_set

    def collect(self) -> Iterable[Metric]:
        ready = GaugeMetricFamily(
            "penstock_router_replica_ready", "Whether the replica takes requests.", labels=["replica"]
        )
        malformed = CounterMetricFamily(
            "penstock_router_replica_malformed",
            "Messages of the replica that are unusable.",
            labels=["replica"],
        )
        ejected = GaugeMetricFamily(
            "penstock_router_replica_ejected",
            "Whether the replica is ejected because it did not answer.",
            labels=["replica"],
        )
        ejections = CounterMetricFamily(
            "penstock_router_ejections", "Times that the replica was ejected.", labels=["replica"]
        )
        stalled = CounterMetricFamily(
            "penstock_router_stalled_requests",
            "Requests ended because no message about them was received for far longer than forecast.",
            labels=["replica"],
        )
        take_replay = GaugeMetricFamily(
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
            "Whether changes of the replica set are received now.",
            value=float(self._replica_set.connected),
        )
        unread = CounterMetricFamily(
            "penstock_router_discovery_malformed",
            "Malformed objects of the cluster.",
            value=self._replica_set.malformed,
        )
        return [ready, ejected, ejections, stalled, take_replay, malformed, connected, unread]
