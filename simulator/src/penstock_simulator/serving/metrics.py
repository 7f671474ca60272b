"""The engine's Prometheus metrics, under vLLM's names.

An observation of prometheus-client's histogram costs a microsecond, and an iteration has one for each token.
So counts are plain numbers here, incremented in bulk once an iteration, and become metric families on scrape.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.iteration import Finish

TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
"""Buckets of TTFT."""
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
"""Buckets of the time between tokens."""
E2E_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
"""Buckets of durations."""
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Buckets of an iteration's tokens."""
PLANNING_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Buckets of planning times."""


class Histogram:
    """A histogram with fixed bucket bounds."""

    def __init__(self, name: str, about: str, bounds: tuple[float, ...]) -> None:
        self.name, self.about, self.bounds = name, about, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `times` observations of one value."""
        self._counts[bisect_left(self.bounds, value)] += times
        self._sum += value * times

    def family(self, label: str) -> Metric:
        """Return the metric family with cumulative counts. label: value of `model_name`."""
        total, buckets = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), float(total)))
        family = HistogramMetricFamily(self.name, self.about, labels=["model_name"])
        family.add_metric([label], buckets, self._sum)
        return family


class EngineMetrics(Collector):
    """All metrics of one engine, with their own registry."""

    def __init__(self, model: str, state: EngineState) -> None:
        self._model, self._state = model, state
        self.ttft = Histogram("vllm:time_to_first_token_seconds", "Time to first token.", TTFT_S)
        self.itl = Histogram("vllm:inter_token_latency_seconds", "Inter-token latency.", ITL_S)
        self.tpot = Histogram(
            "vllm:request_time_per_output_token_seconds", "Mean time per output token of a request.", ITL_S
        )
        self.e2e = Histogram("vllm:e2e_request_latency_seconds", "End-to-end latency of a request.", E2E_S)
        self.step_tokens = Histogram("vllm:iteration_tokens_total", "Tokens in one iteration.", STEP_TOKENS)
        self.planning = Histogram(
            "penstock_engine_planning_seconds", "Duration of the policy's planning of one step.", PLANNING_S
        )
        self.prompt_tokens = self.generation_tokens = 0
        self.policy_failures = self.reports_lost = 0
        self.finished: Counter[str] = Counter({finish.value: 0 for finish in Finish})
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def text(self) -> bytes:
        """Return the response body of `/metrics`."""
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """Yield every metric family."""
        for histogram in (self.ttft, self.itl, self.tpot, self.e2e, self.step_tokens, self.planning):
            yield histogram.family(self._model)
        yield from self._gauges()
        yield from self._counters()

    def _gauges(self) -> Iterable[Metric]:
        state = self._state
        used = 1 - state.free_blocks / state.total_blocks
        yield self._gauge("vllm:num_requests_running", "Requests that hold KV blocks.", state.running_count)
        yield self._gauge("vllm:num_requests_waiting", "Requests that hold none yet.", state.waiting_count)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, from 0 to 1.", used)

    def _counters(self) -> Iterable[Metric]:
        yield self._counter("vllm:num_preemptions", "Preemptions of requests.", self._state.preemptions)
        yield self._counter("vllm:prompt_tokens", "Prompt tokens of submitted requests.", self.prompt_tokens)
        cached = self._state.cached
        queried, hit = (cached.queried_tokens, cached.hit_tokens) if cached is not None else (0, 0)
        yield self._counter("vllm:prefix_cache_queries", "Tokens sought in the prefix cache.", queried)
        yield self._counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", hit)
        yield self._counter("vllm:generation_tokens", "Generated tokens.", self.generation_tokens)
        yield self._counter(
            "penstock_engine_policy_failures",
            "Steps planned by the fallback policy because the pool's policy failed.",
            self.policy_failures,
        )
        yield self._counter(
            "penstock_engine_reports_lost",
            "Step reports that could not be sent to the sidecar.",
            self.reports_lost,
        )
        success = CounterMetricFamily(
            "vllm:request_success", "Finished requests.", labels=["model_name", "finished_reason"]
        )
        for reason, count in self.finished.items():
            success.add_metric([self._model, reason], count)
        yield success

    def _gauge(self, name: str, about: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, about, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, about: str, value: float) -> Metric:
        family = CounterMetricFamily(name, about, labels=["model_name"])
        family.add_metric([self._model], value)
        return family
