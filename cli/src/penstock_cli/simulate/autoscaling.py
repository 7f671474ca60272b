"""Autoscaling of a simulated pool, with the operator's decision."""

from dataclasses import dataclass, field

from penstock_core.autoscaling.decision import decide_replicas
from penstock_core.autoscaling.demand import DemandObservation
from penstock_core.autoscaling.memory import AutoscalerState
from penstock_core.autoscaling.terms import Scaling
from penstock_pool import Pool
from penstock_simulator.simulation import FleetAutoscaler
from penstock_simulator.simulation.autoscaling.autoscaler import ReplicaCounts, gpu_hours, scale_events


@dataclass(slots=True)
class PoolAutoscaler:
    """Decides as the operator does, and records the numbers of replicas.

    startup_s: seconds from a decision to a ready replica.
    """

    scaling: Scaling
    startup_s: float
    memory: AutoscalerState = field(default_factory=AutoscalerState)
    timeline: list[ReplicaCounts] = field(default_factory=list)

    def fleet_autoscaler(self) -> FleetAutoscaler:
        """Return the autoscaler for the simulation."""
        return FleetAutoscaler(self._decide, startup_s=self.startup_s, on_change=self.timeline.append)

    def as_json(self, span_s: float) -> dict[str, float | int]:
        """Return its figures as JSON. span_s: time of the last arrival."""
        return {
            "gpu_hours": gpu_hours(self.timeline, span_s),
            "scale_events": scale_events(self.timeline),
            "most_replicas": max(counts.desired for counts in self.timeline),
        }

    def summary(self, span_s: float) -> str:
        """Return its figures as one line."""
        fewest = min(counts.desired for counts in self.timeline)
        figures = self.as_json(span_s)
        return (
            f"Autoscaling kept between {fewest} and {figures['most_replicas']} replicas (changes: "
            f"{figures['scale_events']}), {figures['gpu_hours']:.2f} replica-hours up to the last arrival."
        )

    def _decide(self, demand: DemandObservation, now_s: float) -> int:
        decision, self.memory = decide_replicas(self.scaling, demand, self.memory, now_s)
        return decision.replicas


def autoscaler_of(pool: Pool, startup_s: float) -> PoolAutoscaler | None:
    """Return the pool's autoscaler; None if it has none, or Kubernetes' own."""
    spec = pool.spec.autoscaling
    if spec is None or spec.by != "penstock":
        return None
    return PoolAutoscaler(spec.scaling(), startup_s)
