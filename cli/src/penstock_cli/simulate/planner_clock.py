"""Measures the planning time of the policies of a simulation."""

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
    """Planning times in seconds.

    admissions_s: time of every admission. steps_s: total of all steps. planned_s: total duration of their
        iterations.
    """

    admissions_s: "array[float]" = field(default_factory=lambda: array("d"))
    steps_s: float = 0.0
    planned_s: float = 0.0

    def build(self, name: str, knobs: Knobs) -> Policy[Any]:
        """Return the policy of this name with its calls timed. Raises UnknownPolicy, VllmMissing."""
        return _TimedPolicy(policies.build(name, knobs), self)

    def times(self) -> PlannerTimes:
        """Return percentiles of admissions, as a sidecar measures them."""
        ordered = sorted(1000 * seconds for seconds in self.admissions_s)
        return PlannerTimes(percentile(ordered, 0.5), percentile(ordered, 0.99), percentile(ordered, 1.0))

    @property
    def step_share(self) -> float | None:
        """Planning time of steps as a share of their iterations; None if there were none."""
        return self.steps_s / self.planned_s if self.planned_s > 0 else None


class _TimedPolicy:
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
