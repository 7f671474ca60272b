"""Planning times of a replay: what lies between two readings of the sidecars' histograms."""

from collections import Counter

import pytest
from penstock_cli.replay.planner_metrics import PlannerReading, added, planner_times
from penstock_cli.replay.report import PlannerTimes

INF = float("inf")


def page(longest_s: float, **counts: int) -> str:
    """A sidecar's metrics. counts: by bound in milliseconds, cumulative."""
    name = "penstock_replica_planner_seconds"
    bounds = {float(bound.removeprefix("ms")) / 1000: count for bound, count in counts.items()}
    rows = [f'{name}_bucket{{le="{bound}"}} {count}' for bound, count in bounds.items()]
    total = max(counts.values())
    rows += [f'{name}_bucket{{le="+Inf"}} {total}', f"{name}_count {total}", f"{name}_sum 1.0"]
    return "\n".join(
        [f"# TYPE {name} histogram", *rows, f"# TYPE {name}_max gauge", f"{name}_max {longest_s}"]
    )


def reading(*pages: str) -> PlannerReading:
    total = PlannerReading()
    for each in pages:
        total = added(total, each)
    return total


def test_calls_of_all_sidecars_are_added_and_the_longest_is_of_any() -> None:
    total = reading(page(0.004, ms1=3, ms5=10), page(0.002, ms1=2, ms5=5))
    assert total == PlannerReading(Counter({0.001: 5, 0.005: 15, INF: 15}), 0.004)


def test_a_percentile_is_the_bound_of_its_bucket_or_the_longest_call() -> None:
    before = reading(page(0.001, ms1=100, ms5=100, ms50=100))
    after = reading(page(0.03, ms1=150, ms5=198, ms50=200))
    assert planner_times(before, after) == PlannerTimes(1.0, 30.0, 30.0)
    after = reading(page(0.03, ms1=149, ms5=199, ms50=200))
    assert planner_times(before, after) == PlannerTimes(5.0, 5.0, 30.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, PlannerReading()), (PlannerReading(), None), (None, None), (PlannerReading(), PlannerReading())],
    ids=["no start", "no end", "neither", "no calls"],
)
def test_without_two_readings_or_calls_there_are_no_times(
    before: PlannerReading | None, after: PlannerReading | None
) -> None:
    assert planner_times(before, after) == PlannerTimes()


def test_a_restarted_sidecar_has_no_times() -> None:
    before, after = reading(page(0.004, ms1=10)), reading(page(0.001, ms1=5))
    assert planner_times(before, after) == PlannerTimes()


def test_all_percentiles_of_a_single_call_are_equal() -> None:
    assert planner_times(PlannerReading(), reading(page(0.0004, ms1=1))) == PlannerTimes(0.4, 0.4, 0.4)
