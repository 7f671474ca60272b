"""Planning times, read from the sidecars' histograms.

A percentile of a Prometheus histogram is known only by its bucket; the bucket's upper bound is reported. The
longest call counts from the sidecars' start.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from penstock_cli.replay.report import PlannerTimes

HISTOGRAM = "penstock_replica_planner_seconds"
LONGEST = "penstock_replica_planner_seconds_max"
READ_TIMEOUT_S = 3.0
"""Timeout of reading one sidecar's metrics."""


@dataclass(frozen=True, slots=True)
class PlannerReading:
    """The planner's calls so far, over all sidecars.

    calls: cumulative counts by bucket bound, in seconds.
    longest_s: longest call since the sidecars started.
    """

    calls: Counter[float] = field(default_factory=Counter)
    longest_s: float = 0.0


async def read_planner(session: aiohttp.ClientSession, urls: Iterable[str]) -> PlannerReading | None:
    """Read the sidecars' metrics. None if one cannot be reached, as from outside of a cluster."""
    total = PlannerReading()
    for url in urls:
        try:
            async with session.get(url, timeout=aiohttp.ClientTimeout(total=READ_TIMEOUT_S)) as reply:
                total = added(total, await reply.text())
        except (aiohttp.ClientError, TimeoutError):
            return None
    return total


def added(total: PlannerReading, page: str) -> PlannerReading:
    """Return the reading with one sidecar's metrics added."""
    calls, longest_s = Counter(total.calls), total.longest_s
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == f"{HISTOGRAM}_bucket":
                calls[float(sample.labels["le"])] += int(sample.value)
            elif sample.name == LONGEST:
                longest_s = max(longest_s, sample.value)
    return PlannerReading(calls, longest_s)


def planner_times(before: PlannerReading | None, after: PlannerReading | None) -> PlannerTimes:
    """Return percentiles of the calls between two readings; empty if there were none."""
    if before is None or after is None:
        return PlannerTimes()
    counts = {bound: after.calls[bound] - before.calls[bound] for bound in sorted(after.calls)}
    calls = counts.get(float("inf"), 0)
    if calls <= 0:
        return PlannerTimes()

    def bound_ms(share: float) -> float:
        bound = next(bound for bound, count in counts.items() if count >= share * calls)
        return min(bound, after.longest_s) * 1000

    return PlannerTimes(bound_ms(0.5), bound_ms(0.99), after.longest_s * 1000)
