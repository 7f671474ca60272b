"""How long planning takes, measured around the policies of a simulation while it runs."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from penstock_core.domain.policy import Knobs, Policy, Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_simulator import policies

from penstock_cli.replay.report import PlannerTimes
from penstock_cli.replay.tally import percentile


@dataclass(slots=True)
class PlannerClock:
    """Seconds that planning took.

    admissions_s: of every admission. steps_s: of all steps. planned_s: of the iterations that they planned.
    """

    admissions_s: "array[float]" = field(default_factory=lambda: array("d"))
    steps_s: float = 0.0
    planned_s: float = 0.0

    def build(self, name: str, knobs: Knobs) -> Policy[Any]:
        """The policy of this name, measured. Raises UnknownPolicy, VllmMissing."""
        return _Measured(policies.build(name, knobs), self)

    def times(self) -> PlannerTimes:
        """Of admissions, as a sidecar measures them."""
        ordered = sorted(1000 * seconds for seconds in self.admissions_s)
        return PlannerTimes(percentile(ordered, 0.5), percentile(ordered, 0.99), percentile(ordered, 1.0))

    @property
    def step_share(self) -> float | None:
        """What a step's decision takes of its iteration, on average."""
        return self.steps_s / self.planned_s if self.planned_s > 0 else None


class _Measured:
    """A policy whose calls are timed."""

    def __init__(self, policy: Policy[Any], clock: PlannerClock) -> None:
        self._policy, self._clock = policy, clock

    def start(self) -> Any:
        return self._policy.start()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> Sequence[Verdict]:
        before_s = perf_counter()
        verdicts = self._policy.admit(view, new)
        self._clock.admissions_s.append(perf_counter() - before_s)
        return verdicts

    def step(self, view: ReplicaView, memory: Any) -> tuple[Step, Any]:
        before_s = perf_counter()
        step, memory = self._policy.step(view, memory)
        self._clock.steps_s += perf_counter() - before_s
        self._clock.planned_s += step.duration_s
        return step, memory
