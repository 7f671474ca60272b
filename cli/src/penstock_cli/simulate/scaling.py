"""A simulated pool that scales: the production decision, and what it did."""

from dataclasses import dataclass, field

from penstock_core.autoscaling.decision import decide_replicas
from penstock_core.autoscaling.demand import Demand
from penstock_core.autoscaling.memory import Memory
from penstock_core.autoscaling.terms import Scaling
from penstock_pool import Pool
from penstock_simulator.simulation import FleetAutoscaler
from penstock_simulator.simulation.autoscaling.autoscaler import ReplicaCounts, gpu_hours, scale_events


@dataclass(slots=True)
class Scaler:
    """Decides between two simulated looks as an operator does, and keeps how the replicas stood.

    startup_s: from a decision to a replica that takes requests.
    """

    scaling: Scaling
    startup_s: float
    memory: Memory = field(default_factory=Memory)
    stands: list[ReplicaCounts] = field(default_factory=list)

    def steering(self) -> FleetAutoscaler:
        """For the simulation."""
        return FleetAutoscaler(self._decide, startup_s=self.startup_s, on_change=self.stands.append)

    def found(self, span_s: float) -> dict[str, float | int]:
        """What it took, for programs. span_s: until the last arrival."""
        return {
            "gpu_hours": gpu_hours(self.stands, span_s),
            "scale_events": scale_events(self.stands),
            "most_replicas": max(stand.desired for stand in self.stands),
        }

    def in_words(self, span_s: float) -> str:
        """One line that says what it took."""
        fewest = min(stand.desired for stand in self.stands)
        found = self.found(span_s)
        return (
            f"Autoscaling kept between {fewest} and {found['most_replicas']} replicas (changes: "
            f"{found['scale_events']}), {found['gpu_hours']:.2f} replica-hours up to the last arrival."
        )

    def _decide(self, demand: Demand, now_s: float) -> int:
        decision, self.memory = decide_replicas(self.scaling, demand, self.memory, now_s)
        return decision.replicas


def scaler_of(pool: Pool, startup_s: float) -> Scaler | None:
    """The pool's; None where nobody scales it, or Kubernetes' own autoscaler does."""
    told = pool.spec.autoscaling
    if told is None or told.by != "penstock":
        return None
    return Scaler(told.scaling(), startup_s)
