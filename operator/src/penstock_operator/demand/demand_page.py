"""One process' `GET /penstock/v1/demand`: counters per tier, and the snapshots of replicas."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COUNTERS = ("arrived", "admitted", "best_effort", "rejected", "hops", "judged", "met")
"""Names of the counters whose differences autoscaling uses."""

ATTAINMENT = ("all_judged", "all_met")
"""Counters of all requests; rejected requests count as missed."""

Counters = Mapping[str, Mapping[str, int]]
"""Counters by tier, then by name."""


@dataclass(frozen=True, slots=True)
class DemandReport:
    """One pod's demand. pod: its uid. since_s: seconds since its counters started at zero."""

    pod: str
    since_s: float
    held: int
    tiers: Counters
    replicas: Sequence[Mapping[str, Any]] = ()


def parse_demand_page(pod: str, page: Mapping[str, Any]) -> DemandReport:
    """Parse a page from JSON. Raises KeyError, TypeError, ValueError or AttributeError if it is invalid."""
    tiers = {
        name: {counter: int(counts[counter]) for counter in (*COUNTERS, *ATTAINMENT)}
        for name, counts in page["tiers"].items()
    }
    return DemandReport(
        pod, float(page["since_s"]), int(page["held"]), tiers, tuple(page.get("replicas", ()))
    )


@dataclass(frozen=True, slots=True)
class TierCounts:
    """Requests of a tier since the processes started: those that ended, and those that met its SLO."""

    judged: int = 0
    met: int = 0


def counts_of(reports: Iterable[DemandReport]) -> dict[str, TierCounts]:
    """Return attainment since the processes started, by tier."""
    counts: dict[str, TierCounts] = {}
    for report in reports:
        for name, tier in report.tiers.items():
            before = counts.get(name, TierCounts())
            counts[name] = TierCounts(before.judged + tier["all_judged"], before.met + tier["all_met"])
    return counts
