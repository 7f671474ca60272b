"""Learned properties of the engine: the duration of its steps, the acceptance rate of its draft tokens.

Most steps are only recorded. The time model is updated with all of them when it is needed, which is never
while a repeated plan holds.
"""

from collections.abc import Sequence

from penstock_core.timing.acceptance_rate import Acceptance, Drafted
from penstock_core.timing.acceptance_rate import observe as observe_drafts
from penstock_core.timing.correction import Correction, corrected
from penstock_core.timing.correction import observe as observe_step
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

from penstock_vllm.pipeline import MeasuredStep

MOST_NOTED = 16
"""Recorded steps after which the model is updated, even if it is not needed."""


class EngineEstimates:
    """Estimates, updated as steps end.

    speculation: estimate of the drafter; None without one.
    """

    def __init__(self, fitted: TimeModel, drafter: Speculation | None) -> None:
        self._fitted, self._drafter = fitted, drafter
        self._correction = Correction()
        self._acceptance = Acceptance(drafter.acceptance if drafter else 0.0)
        self._noted: list[MeasuredStep] = []
        self._model = corrected(fitted, self._correction)
        self.speculation = drafter

    @property
    def model(self) -> TimeModel:
        """Return the time model, corrected by every step so far."""
        if self._noted:
            self._learn()
        return self._model

    def step(self, measured: MeasuredStep) -> None:
        """Record a measured step."""
        self._noted.append(measured)
        if len(self._noted) >= MOST_NOTED:
            self._learn()

    def _learn(self) -> None:
        for work, seconds in self._noted:
            self._correction = observe_step(self._correction, self._fitted, work, seconds)
        self._model = corrected(self._fitted, self._correction)
        self._noted.clear()

    def drafts(self, drafted: Sequence[Drafted]) -> None:
        """Record verified draft tokens."""
        if drafted and self._drafter is not None:
            self._acceptance = observe_drafts(self._acceptance, drafted)
            self.speculation = self._acceptance.measured(self._drafter)
