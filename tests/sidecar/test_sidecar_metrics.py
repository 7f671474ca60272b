"""A replica's metrics."""

from histogram_buckets import documented, exported
from penstock_core.forecast.snapshot import Snapshot
from penstock_sidecar.metrics import Metrics
from prometheus_client import CollectorRegistry


def test_best_effort_uses_memory_and_adds_no_filled_share() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    best_effort = Snapshot(best_effort=9, kv_tokens_total=100, kv_tokens_free=10, kv_tokens_headroom=75)
    metrics.load(best_effort, requests=9, engine_ready=True, draining=False)
    assert registry.get_sample_value("penstock_replica_kv_used_ratio") == 0.9
    assert registry.get_sample_value("penstock_replica_filled_ratio") == 0.25


def test_the_load_is_exported_unchanged() -> None:
    registry = CollectorRegistry()
    now = Snapshot(running=3, waiting=4, best_effort=5)
    Metrics(registry).load(now, requests=7, engine_ready=True, draining=False)
    reported = {
        name: registry.get_sample_value(f"penstock_replica_{name}")
        for name in ("running", "waiting", "best_effort", "open_requests", "engine_ready", "draining")
    }
    assert reported == {
        "running": 3,
        "waiting": 4,
        "best_effort": 5,
        "open_requests": 7,
        "engine_ready": 1,
        "draining": 0,
    }


def test_the_longest_call_of_the_planner_is_recorded() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for seconds in (0.25, 0.5, 0.125):
        metrics.planned(seconds)
    assert registry.get_sample_value("penstock_replica_planner_seconds_max") == 0.5
    assert registry.get_sample_value("penstock_replica_planner_seconds_sum") == 0.875


def test_histograms_have_the_buckets_that_the_docs_name() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.ttft("chat").observe(1)
    metrics.tpot("chat").observe(1)
    assert exported(registry) == documented("penstock_replica_")
