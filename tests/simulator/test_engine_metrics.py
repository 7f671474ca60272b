"""The text of `/metrics`: every family by name, with the counts of its observations."""

from collections.abc import Callable

import pytest
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import Limits
from penstock_core.domain.request import Job
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.serving.metrics import EngineMetrics, Histogram
from prometheus_client.parser import text_string_to_metric_families

Make = Callable[..., Job]


def samples(metrics: EngineMetrics) -> dict[tuple[str, ...], float]:
    """Values by name and the labels other than the model's."""
    read = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            assert sample.labels.pop("model_name") == "tiny"
            read[sample.name, *sample.labels.values()] = sample.value
    return read


def test_gauges_have_the_engines_state(job: Make) -> None:
    state = EngineState(160, Limits(2048, 64))
    metrics = EngineMetrics("tiny", state)
    for name in "abc":
        state.add(job(name, 30, arrival_s=float(ord(name))), 20)
    state.apply(Step({"a": 30, "b": 30}), 1.0)
    state.apply(Step({"a": 1}, preempt=("b",)), 2.0)
    read = samples(metrics)
    assert read["vllm:num_requests_running",] == 1
    assert read["vllm:num_requests_waiting",] == 2
    assert read["vllm:kv_cache_usage_perc",] == pytest.approx(0.2)
    assert read["vllm:num_preemptions_total",] == 1


def test_counters_have_the_counted_values() -> None:
    metrics = EngineMetrics("tiny", EngineState(160, Limits(2048, 64)))
    before = samples(metrics)
    counters = {name: value for name, value in before.items() if name[0].endswith("_total")}
    assert set(counters.values()) == {0.0}
    metrics.prompt_tokens, metrics.generation_tokens = 3, 4
    metrics.policy_failures, metrics.reports_lost = 5, 6
    metrics.finished["stop"] += 7
    changed = {name: value for name, value in samples(metrics).items() if before[name] != value}
    assert changed == {
        ("vllm:prompt_tokens_total",): 3,
        ("vllm:generation_tokens_total",): 4,
        ("penstock_engine_policy_failures_total",): 5,
        ("penstock_engine_reports_lost_total",): 6,
        ("vllm:request_success_total", "stop"): 7,
    }


HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
    "step_tokens": "vllm:iteration_tokens_total",
    "planning": "penstock_engine_planning_seconds",
}


@pytest.mark.parametrize("field", HISTOGRAMS)
def test_an_observation_is_in_every_bucket_at_or_above_it(field: str) -> None:
    metrics = EngineMetrics("tiny", EngineState(160, Limits(2048, 64)))
    histogram: Histogram = getattr(metrics, field)
    assert list(histogram.bounds) == sorted(set(histogram.bounds)), "and none is there twice"
    first, second = histogram.bounds[:2]
    histogram.observe(first)
    histogram.observe(second, 3)
    histogram.observe(2 * histogram.bounds[-1])
    read, name = samples(metrics), HISTOGRAMS[field]
    buckets = [read[f"{name}_bucket", str(float(bound))] for bound in histogram.bounds]
    assert buckets == [1] + [4] * (len(histogram.bounds) - 1)
    assert read[f"{name}_bucket", "+Inf"] == read[f"{name}_count",] == 5
    assert read[f"{name}_sum",] == pytest.approx(first + 3 * second + 2 * histogram.bounds[-1])
    others = [value for key, value in read.items() if key[0].endswith("_count") and key[0] != f"{name}_count"]
    assert others == [0.0] * 5


ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
VLLM_BUCKETS = {
    "ttft": (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, *ITL_S[9:]),
    "itl": ITL_S,
    "tpot": ITL_S,
    "e2e": (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960),
    "step_tokens": (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
}
"""Dashboards made for vLLM read these."""


@pytest.mark.parametrize("field", VLLM_BUCKETS)
def test_buckets_equal_vllms(field: str) -> None:
    metrics = EngineMetrics("tiny", EngineState(160, Limits(2048, 64)))
    assert getattr(metrics, field).bounds == VLLM_BUCKETS[field]
