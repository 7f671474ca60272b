"""What a replica tells Prometheus. Tiers are the only labels that a pool chooses; no client chooses any."""

from penstock_core.autoscaling.utilization import filling
from penstock_core.forecast.snapshot import Snapshot
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_PACE = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1)
_PLANNING = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.01, 0.03, 0.1)
_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)


class Metrics:
    """The metrics of one sidecar, in a registry of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"penstock_replica_{name}", says, labels, registry=registry)

        def gauge(name: str, says: str) -> Gauge:
            return Gauge(f"penstock_replica_{name}", says, registry=registry)

        def histogram(name: str, says: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"penstock_replica_{name}", says, labels, buckets=buckets, registry=registry)

        self.verdicts = counter("verdicts_total", "Verdicts given.", "tier", "verdict", "reason")
        self.ends = counter("ends_total", "Requests that ended, by how.", "tier", "end")
        self.ttft = histogram("ttft_seconds", "From submit to the first output.", _SECONDS, "tier")
        self.tpot = histogram("tpot_seconds", "Mean gap between output tokens.", _PACE, "tier")
        self.planner = histogram("planner_seconds", "One call of the planner.", _PLANNING)
        self.planner_max = gauge("planner_seconds_max", "Longest call of the planner since the start.")
        self.time_error = histogram(
            "time_model_error_ratio", "How far an iteration was from its prediction.", _RATIOS
        )
        self.time_scale = gauge("time_model_scale", "The online correction of the time model.")
        self.acceptance = gauge("draft_acceptance_ratio", "Drafts that are accepted, as the engine measures.")
        self.running = gauge("running", "Requests that hold KV memory.")
        self.waiting = gauge("waiting", "Requests that wait for KV memory.")
        self.best_effort = gauge("best_effort", "Best-effort requests held.")
        self.kv_used = gauge("kv_used_ratio", "Share of the KV cache in use.")
        self.filled = gauge("filled_ratio", "Share of what it can promise that its promises take.")
        self.sessions = gauge("sessions", "Routers connected.")
        self.carried = gauge("carried", "Requests carried over all sessions.")
        self.engine_ready = gauge("engine_ready", "1 while the engine serves.")
        self.draining = gauge("draining", "1 once the replica takes no new work.")
        self.drains = counter("drains_total", "Drains asked for.")
        self.stalled = counter(
            "stalled_total", "Requests that the engine took and did not go on with, by where.", "tier", "at"
        )
        self.returned = counter("returned_total", "Requests handed back to their routers by a drain.")
        self.reports = counter("telemetry_reports_total", "Step reports received.")
        self.lost = counter("telemetry_lost_total", "Step reports that never came.")
        self.malformed = counter("telemetry_malformed_total", "Step reports that nothing can be planned by.")
        self.engine_restarts = counter("engine_restarts_total", "Times the engine was another process.")
        self.policy_faults = counter("policy_faults_total", "Steps in which the policy failed.", "fault")
        self.faults = counter("faults_total", "Faults of the sidecar, each contained where it was.", "where")
        self.telemetry_live = gauge("telemetry_live", "1 while planning rests on the engine's reports.")
        self.held = gauge("held", "Accepted requests held before an engine that is not ours.")
        self.engine_seats = gauge("engine_seats", "Requests that such an engine is given at once, at most.")
        self.release = histogram("release_seconds", "One decision whom to let into it.", _PLANNING)
        self.release_failures = counter("release_failures_total", "Those in which the policy failed.")
        self.engine_full = counter("engine_full_total", "Requests that the engine had no room for.")
        self.routers_behind = counter("routers_behind_total", "Sessions closed on routers that did not read.")

    def planned(self, seconds: float) -> None:
        """One call of the planner."""
        self.planner.observe(seconds)
        if seconds > self._planned_max_s:
            self._planned_max_s = seconds
            self.planner_max.set(seconds)

    def stands(self, now: Snapshot, carried: int, engine_ready: bool, draining: bool) -> None:
        """How the replica stands now."""
        self.running.set(now.running)
        self.waiting.set(now.waiting)
        self.best_effort.set(now.best_effort)
        self.kv_used.set(1 - now.kv_tokens_free / max(now.kv_tokens_total, 1))
        self.filled.set(filling(now))
        self.carried.set(carried)
        self.engine_ready.set(engine_ready)
        self.draining.set(draining)

    _planned_max_s = 0.0
