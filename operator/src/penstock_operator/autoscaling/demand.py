"""The demand of a pool: counters of its routers or sidecars as the autoscaler's input.

Processes count since their start, and come and go (`GET /penstock/v1/demand`). `DemandTally` computes what
was added since the last observation: a new or restarted process has counted from zero; one that does not
answer adds nothing now, and everything later.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

from penstock_core.autoscaling.demand import DemandObservation, ReplicaDemand, ReplicaState, TierDemand
from penstock_core.forecast.snapshot import Snapshot

from penstock_operator.demand.demand_page import COUNTERS, Counters, DemandReading

_SNAPSHOT = {f.name for f in fields(Snapshot)}


@dataclass(slots=True)
class DemandTally:
    """Counters of one pool's processes at the last observation. at_s: its time; None before the first."""

    at_s: float | None = None
    last: dict[str, DemandReading] = field(default_factory=dict)

    def added(self, readings: Sequence[DemandReading], now_s: float) -> tuple[float, Counters]:
        """Return the seconds since the last observation, and the counts by tier. Zero for the first."""
        elapsed_s = 0.0 if self.at_s is None else now_s - self.at_s
        total: dict[str, dict[str, int]] = {}
        for reading in readings:
            for name, tier in reading.tiers.items():
                sums = total.setdefault(name, dict.fromkeys(COUNTERS, 0))
                for counter in COUNTERS:
                    sums[counter] += tier[counter] - self._counted(reading, name, counter, elapsed_s)
        self.at_s = now_s
        self.last |= {reading.pod: reading for reading in readings}
        return elapsed_s, total

    def keep(self, pods: Iterable[str]) -> None:
        """Forget all other pods."""
        remaining = set(pods)
        self.last = {pod: reading for pod, reading in self.last.items() if pod in remaining}

    def _counted(self, reading: DemandReading, tier: str, counter: str, elapsed_s: float) -> int:
        """Return how much of a counter was already counted."""
        last = self.last.get(reading.pod)
        if last is None:
            old = self.at_s is None or reading.since_s > elapsed_s
            return reading.tiers[tier][counter] if old else 0
        if reading.since_s < last.since_s:
            return 0
        return last.tiers.get(tier, {}).get(counter, 0)


def demand_of(
    tally: DemandTally,
    *,
    readings: Sequence[DemandReading],
    replicas: Mapping[str, ReplicaState],
    desired: int,
    has_slo: Mapping[str, bool],
    now_s: float,
) -> DemandObservation:
    """Return one observation for autoscaling.

    replicas: state of the pool's replica pods. has_slo: whether each tier has an SLO.
    """
    elapsed_s, added = tally.added(readings, now_s)
    reported = {row["name"]: row for reading in readings for row in reading.replicas}
    return DemandObservation(
        elapsed_s=elapsed_s,
        desired=desired,
        tiers={name: TierDemand(**counts, has_slo=has_slo.get(name, True)) for name, counts in added.items()},
        held=sum(reading.held for reading in readings),
        replicas=tuple(
            ReplicaDemand(name, state, _snapshot(reported.get(name, {})))
            for name, state in sorted(replicas.items())
        ),
    )


def _snapshot(row: Mapping[str, Any]) -> Snapshot:
    """Return a replica's snapshot from a router's report, in which null means infinity."""
    reported: dict[str, Any] = {k: inf if v is None else v for k, v in row.items() if k in _SNAPSHOT}
    return Snapshot(**reported)
