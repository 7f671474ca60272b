"""Metrics of one replica. Values of the label `tier` are from the pool, never from clients."""

from functools import cache

from penstock_core.autoscaling.utilization import filling
from penstock_core.forecast.snapshot import Snapshot
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Buckets of TTFT and durations."""
_TPOT = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1)
"""Buckets of TPOT."""
_PLANNING = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.01, 0.03, 0.1)
"""Buckets of planning times."""
_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
"""Buckets of errors of predictions."""


class _MetricFactory:
    """Creates metrics with the replica's prefix, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(f"penstock_replica_{name}", documentation, labels, registry=self._registry)

    def gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(f"penstock_replica_{name}", documentation, registry=self._registry)

    def histogram(self, name: str, documentation: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(
            f"penstock_replica_{name}", documentation, labels, buckets=buckets, registry=self._registry
        )


class Metrics:
    """The metrics of one sidecar, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = _MetricFactory(registry)
        self._add_requests(make)
        self._add_planning(make)
        self._add_cached_tokens(make)
        self._add_load(make)
        self._add_engine(make)
        self._add_release(make)
        self._planned_max_s = 0.0

    def _add_requests(self, make: _MetricFactory) -> None:
        """Add the metrics of requests, as functions of the labels' values, which cache each series."""
        self.verdicts = cache(
            make.counter("verdicts_total", "Verdicts given.", "tier", "verdict", "reason").labels
        )
        self.ends = cache(
            make.counter("ends_total", "Requests that ended, by kind of end.", "tier", "end").labels
        )
        self.ttft = cache(
            make.histogram("ttft_seconds", "From submit to the first output.", _SECONDS, "tier").labels
        )
        self.tpot = cache(
            make.histogram("tpot_seconds", "Mean gap between output tokens.", _TPOT, "tier").labels
        )
        self.direct = cache(
            make.counter(
                "direct_answers_total", "Requests that routers sent to the engine, by outcome.", "outcome"
            ).labels
        )
        self.returned = make.counter("returned_total", "Requests returned to their routers by a drain.")
        self.faults = make.counter(
            "faults_total", "Faults of the sidecar itself, by where they occurred.", "where"
        )

    def _add_planning(self, make: _MetricFactory) -> None:
        self.planner = make.histogram("planner_seconds", "Duration of one call of the planner.", _PLANNING)
        self.planner_max = make.gauge("planner_seconds_max", "Longest call of the planner since the start.")
        self.time_error = make.histogram(
            "time_model_error_ratio", "Relative error of an iteration's predicted duration.", _RATIOS
        )
        self.time_scale = make.gauge("time_model_scale", "The online correction of the time model.")
        self.admission_margin = make.gauge(
            "admission_margin_ratio", "Factor on planned durations, learned from SLOs met and missed."
        )
        self.delivery = make.gauge(
            "delivery_seconds",
            "Learned time of a request outside of iterations, which is subtracted from targets.",
        )
        self.acceptance = make.gauge(
            "draft_acceptance_ratio", "Acceptance rate of draft tokens, as the engine measures it."
        )

    def _add_cached_tokens(self, make: _MetricFactory) -> None:
        self._prompt_tokens = make.counter("prompt_tokens_total", "Tokens of prompts with a complete answer.")
        self._cached_planned = make.counter(
            "cached_tokens_planned_total", "Tokens of these prompts that admission assumed to be cached."
        )
        self._cached_found = make.counter(
            "cached_tokens_found_total", "Tokens of these prompts that the engine found in its cache."
        )
        self._cached_missing = make.counter(
            "cached_tokens_missing_total",
            "Tokens that admission assumed to be cached and the engine did not find.",
        )
        self.cached_tokens = make.gauge(
            "cached_tokens", "Tokens that the engine has cached of the prompts known to this sidecar."
        )

    def _add_load(self, make: _MetricFactory) -> None:
        self.running = make.gauge("running", "Requests that hold KV memory.")
        self.waiting = make.gauge("waiting", "Requests that wait for KV memory.")
        self.best_effort = make.gauge("best_effort", "Best-effort requests held.")
        self.kv_used = make.gauge("kv_used_ratio", "Share of the KV cache in use.")
        self.filled = make.gauge(
            "filled_ratio", "Share of the replica's capacity that admitted requests take."
        )
        self.sessions = make.gauge("sessions", "Connected routers.")
        self.routers_behind = make.counter(
            "routers_behind_total", "Sessions closed because the router did not read."
        )
        self.open_requests = make.gauge(
            "open_requests", "Requests accepted and not ended, over all sessions."
        )
        self.draining = make.gauge("draining", "1 while the replica drains.")
        self.drains = make.counter("drains_total", "Drains requested.")

    def _add_engine(self, make: _MetricFactory) -> None:
        self.engine_ready = make.gauge("engine_ready", "1 while the engine serves.")
        self.engine_restarts = make.counter("engine_restarts_total", "Restarts of the engine.")
        self.stalled = make.counter(
            "stalled_total",
            "Requests without progress at the engine, by where they were.",
            "tier",
            "at",
        )
        self.reports = make.counter("telemetry_reports_total", "Step reports received.")
        self.lost = make.counter("telemetry_lost_total", "Step reports that were lost.")
        self.malformed = make.counter("telemetry_malformed_total", "Step reports with invalid values.")
        self.telemetry_live = make.gauge("telemetry_live", "1 while planning uses the engine's reports.")
        self.policy_faults = make.counter("policy_faults_total", "Steps in which the policy failed.", "fault")

    def _add_release(self, make: _MetricFactory) -> None:
        """Add the metrics of an engine of type `openai`."""
        self.held = make.gauge("held", "Accepted requests held before an engine of type openai.")
        self.engine_slots = make.gauge(
            "engine_slots", "Most concurrent requests in an engine of type openai."
        )
        self.release = make.histogram(
            "release_seconds", "Duration of a decision about which requests enter the engine.", _PLANNING
        )
        self.release_failures = make.counter(
            "release_failures_total", "Release decisions in which the policy failed."
        )
        self.engine_full = make.counter(
            "engine_full_total", "Requests that the engine rejected for lack of capacity."
        )

    def planned(self, seconds: float) -> None:
        """Record one call of the planner."""
        self.planner.observe(seconds)
        if seconds > self._planned_max_s:
            self._planned_max_s = seconds
            self.planner_max.set(seconds)

    def cached(self, planned_tokens: int, found_tokens: int, prompt_tokens: int) -> None:
        """Count the prompt of a complete answer, and its cached tokens."""
        self._prompt_tokens.inc(prompt_tokens)
        self._cached_planned.inc(planned_tokens)
        self._cached_found.inc(found_tokens)
        self._cached_missing.inc(max(planned_tokens - found_tokens, 0))

    def load(self, now: Snapshot, requests: int, engine_ready: bool, draining: bool) -> None:
        """Record the replica's load."""
        self.running.set(now.running)
        self.waiting.set(now.waiting)
        self.best_effort.set(now.best_effort)
        self.kv_used.set(1 - now.kv_tokens_free / max(now.kv_tokens_total, 1))
        self.filled.set(filling(now))
        self.open_requests.set(requests)
        self.engine_ready.set(engine_ready)
        self.draining.set(draining)
