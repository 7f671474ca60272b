"""The demand of a pool: counters of its routers or sidecars as the autoscaler's input.

Processes report counters since their start (`GET /penstock/v1/demand`), and come and go. `DemandTally`
computes the increase since the last observation. A new or restarted process counts from zero. The increase of
a process that does not answer is added when it answers again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

from penstock_core.autoscaling.demand import DemandObservation, ReplicaDemand, ReplicaState, TierDemand
from penstock_core.forecast.snapshot import Snapshot

from penstock_operator.demand.demand_page import COUNTERS, Counters, DemandReport

_SNAPSHOT = {f.name for f in fields(Snapshot)}


@dataclass(slots=True)
class DemandTally:
    """Counters of one pool's processes at the last observation. at_s: its time; None before the first."""

    at_s: float | None = None
    last_reports: dict[str, DemandReport] = field(default_factory=dict)

    def added(self, reports: Sequence[DemandReport], now_s: float) -> tuple[float, Counters]:
        """Return the seconds since the last observation, and the counts by tier. Zero for the first."""
        elapsed_s = 0.0 if self.at_s is None else now_s - self.at_s
        total: dict[str, dict[str, int]] = {}
        for report in reports:
            for name, tier in report.tiers.items():
                sums = total.setdefault(name, dict.fromkeys(COUNTERS, 0))
                for counter in COUNTERS:
                    sums[counter] += tier[counter] - self._already_counted(report, name, counter, elapsed_s)
        self.at_s = now_s
        self.last_reports |= {report.pod: report for report in reports}
        return elapsed_s, total

    def retain(self, pods: Iterable[str]) -> None:
        """Remove the counters of all other pods."""
        remaining = set(pods)
        self.last_reports = {pod: report for pod, report in self.last_reports.items() if pod in remaining}

    def _already_counted(self, report: DemandReport, tier: str, counter: str, elapsed_s: float) -> int:
        """Return the part of a counter that was already counted."""
        last = self.last_reports.get(report.pod)
        if last is None:
            old = self.at_s is None or report.since_s > elapsed_s
            return report.tiers[tier][counter] if old else 0
        if report.since_s < last.since_s:
            return 0
        return last.tiers.get(tier, {}).get(counter, 0)


def demand_of(
    tally: DemandTally,
    *,
    reports: Sequence[DemandReport],
    replicas: Mapping[str, ReplicaState],
    desired: int,
    has_slo: Mapping[str, bool],
    now_s: float,
) -> DemandObservation:
    """Return one observation for autoscaling.

    replicas: state of the pool's replica pods. has_slo: whether each tier has an SLO.
    """
    elapsed_s, added = tally.added(reports, now_s)
    rows = {row["name"]: row for report in reports for row in report.replicas}
    return DemandObservation(
        elapsed_s=elapsed_s,
        desired=desired,
        tiers={name: TierDemand(**counts, has_slo=has_slo.get(name, True)) for name, counts in added.items()},
        held=sum(report.held for report in reports),
        replicas=tuple(
            ReplicaDemand(name, state, _snapshot(rows.get(name, {})))
            for name, state in sorted(replicas.items())
        ),
    )


def _snapshot(row: Mapping[str, Any]) -> Snapshot:
    """Return a replica's snapshot from a router's report, in which null means infinity."""
    values: dict[str, Any] = {k: inf if v is None else v for k, v in row.items() if k in _SNAPSHOT}
    return Snapshot(**values)
