"""What a pool's routers say was asked of them: `GET /penstock/v1/demand`, in this operator's words.

Routers count from their own start, and come and go. `Tally` turns the counters of whoever answers into what
was added since the last look: a router that is new, or began anew, has counted from zero; one that does not
answer adds nothing now and all of it later. Pure but for what it keeps between two looks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

from penstock_core.autoscaling.demand import Demand, ReplicaDemand, ReplicaState, TierDemand
from penstock_core.forecast.snapshot import Snapshot

from penstock_operator.routers.demand_page import COUNTERS, Counters, Reading

_SNAPSHOT = {f.name for f in fields(Snapshot)}


@dataclass(slots=True)
class Tally:
    """Counters of one pool's routers at the last look. at_s: when that was, None before the first."""

    at_s: float | None = None
    last: dict[str, Reading] = field(default_factory=dict)

    def added(self, readings: Sequence[Reading], now_s: float) -> tuple[float, Counters]:
        """Seconds since the last look, and what was counted in them, by tier. Zero for the first look."""
        elapsed_s = 0.0 if self.at_s is None else now_s - self.at_s
        total: dict[str, dict[str, int]] = {}
        for reading in readings:
            for name, tier in reading.tiers.items():
                sums = total.setdefault(name, dict.fromkeys(COUNTERS, 0))
                for counter in COUNTERS:
                    sums[counter] += tier[counter] - self._counted(reading, name, counter, elapsed_s)
        self.at_s = now_s
        self.last |= {reading.router: reading for reading in readings}
        return elapsed_s, total

    def keep(self, routers: Iterable[str]) -> None:
        """Forget routers that are none of these."""
        kept = set(routers)
        self.last = {router: reading for router, reading in self.last.items() if router in kept}

    def _counted(self, reading: Reading, tier: str, counter: str, elapsed_s: float) -> int:
        """How much of a counter is no news."""
        last = self.last.get(reading.router)
        if last is None:
            old = self.at_s is None or reading.since_s > elapsed_s
            return reading.tiers[tier][counter] if old else 0
        if reading.since_s < last.since_s:
            return 0
        return last.tiers.get(tier, {}).get(counter, 0)


def demand_of(
    tally: Tally,
    *,
    readings: Sequence[Reading],
    replicas: Mapping[str, ReplicaState],
    desired: int,
    promises: Mapping[str, bool],
    now_s: float,
) -> Demand:
    """One observation for autoscaling.

    replicas: the pool's replica pods and how each stands. promises: its tiers, and whether each has an SLO.
    """
    elapsed_s, added = tally.added(readings, now_s)
    told = {row["name"]: row for reading in readings for row in reading.replicas}
    return Demand(
        elapsed_s=elapsed_s,
        desired=desired,
        tiers={
            name: TierDemand(**counts, promises=promises.get(name, True)) for name, counts in added.items()
        },
        held=sum(reading.held for reading in readings),
        replicas=tuple(
            ReplicaDemand(name, state, _snapshot(told.get(name, {})))
            for name, state in sorted(replicas.items())
        ),
    )


def _snapshot(row: Mapping[str, Any]) -> Snapshot:
    """What a router passes on of a replica's snapshot; null stands for infinity, which JSON has not."""
    told: dict[str, Any] = {k: inf if v is None else v for k, v in row.items() if k in _SNAPSHOT}
    return Snapshot(**told)
