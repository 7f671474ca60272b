"""Demand on the pool, for the autoscaler.

Routers count it, and behind a gateway sidecars do: each request where it is first tried, where its first
verdict is given, and where it ends. Counters are by tier, since the start of the process; readers compute
differences and add up processes. A verdict is counted before the answer is complete.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from penstock_core.forecast.snapshot import Snapshot
from penstock_runtime.clock import monotonic
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock_routing.replicas.link_state import LinkState
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.request.outcome import Outcome

ReplicaRow = Mapping[str, Any]

ADMITTED, BEST_EFFORT = "admitted", "best-effort"


@dataclass(slots=True)
class TierCounters:
    """One tier's requests.

    arrived: valid requests.
    admitted, best_effort, rejected: requests by their first verdict. never: requests that no replica could
        serve even when idle; they are not in `rejected`, because more replicas would not help.
    hops: replicas that had answered, summed at the first verdicts.
    judged, met: admitted requests that ended, and those of them that met every target.
    all_judged, all_met: the same for all requests, where a rejected one counts as missed, as in attainment.
    """

    arrived: int = 0
    admitted: int = 0
    best_effort: int = 0
    rejected: int = 0
    never: int = 0
    hops: int = 0
    judged: int = 0
    met: int = 0
    all_judged: int = 0
    all_met: int = 0


class Demand:
    """The demand at one process, by tier."""

    def __init__(self, tiers: Iterable[str]) -> None:
        self._tiers = {name: TierCounters() for name in tiers}
        self._started_s = monotonic()

    def verdicts(self) -> Iterator[tuple[str, str, int]]:
        """Yield tier, first verdict and number of requests, for every tier and verdict."""
        for name, tier in self._tiers.items():
            yield name, ADMITTED, tier.admitted
            yield name, BEST_EFFORT, tier.best_effort
            yield name, "rejected", tier.rejected
            yield name, "never", tier.never

    def arrived(self, tier: str) -> None:
        """Count a request that is about to be placed."""
        self._tiers[tier].arrived += 1

    def decided(self, outcome: Outcome, never: bool = False) -> None:
        """Count a verdict, if it is the request's first. A second one follows the loss of a replica."""
        if outcome.decided:
            return
        outcome.decided = True
        tier = self._tiers[outcome.tier.name]
        tier.hops += outcome.hops
        if never:
            tier.never += 1
        elif outcome.verdict == ADMITTED:
            tier.admitted += 1
        elif outcome.verdict == BEST_EFFORT:
            tier.best_effort += 1
        else:
            tier.rejected += 1

    def judged(self, outcome: Outcome, met: bool) -> None:
        """Count a request that has ended. met: whether it met every target."""
        tier = self._tiers[outcome.tier.name]
        tier.all_judged += 1
        tier.all_met += met
        if outcome.verdict == ADMITTED:
            tier.judged += 1
            tier.met += met

    def page(self, held: int, replicas: Iterable[ReplicaRow]) -> bytes:
        """Return the page as JSON. held: requests that wait because no replica is in service."""
        return orjson.dumps(
            {
                "held": held,
                "since_s": monotonic() - self._started_s,
                "tiers": {name: asdict(tier) for name, tier in self._tiers.items()},
                "replicas": list(replicas),
            }
        )


class VerdictCounters(Collector):
    """Exports first verdicts. All series begin at 0, so that a rate includes the first one.

    prefix: prefix of the metric's name.
    """

    def __init__(self, prefix: str, demand: Demand) -> None:
        self._prefix, self._demand = prefix, demand

    def collect(self) -> Iterable[Metric]:
        """Return the current counts."""
        verdicts = CounterMetricFamily(
            f"{self._prefix}_verdicts",
            "Requests by their first verdict, when it was given: admitted, best-effort, rejected, never.",
            labels=["tier", "verdict"],
        )
        for tier, verdict, requests in self._demand.verdicts():
            verdicts.add_metric([tier, verdict], requests)
        return [verdicts]


def linked_replicas(links: Iterable[ReplicaLink]) -> Iterator[ReplicaRow]:
    """Yield a row for each replica of this process."""
    for link in links:
        age_s = monotonic() - link.load.snapshot_s
        yield replica_row(link.name, link.state, link.load.snapshot, age_s)


def replica_row(name: str, state: LinkState, load: Snapshot, age_s: float) -> ReplicaRow:
    """Return one replica's row. age_s: age of the load."""
    return {"name": name, "state": state.value, "age_s": age_s, **asdict(load)}
