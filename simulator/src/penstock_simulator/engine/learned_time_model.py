"""The pool's time model, corrected online by measured iterations."""

from penstock_core.timing.correction import Correction, corrected, observe
from penstock_core.timing.time_model import BatchWork, TimeModel


class LearnedTimeModel:
    """A time model with an online correction.

    model: the corrected model, which policies plan with.
    """

    def __init__(self, model: TimeModel) -> None:
        self._configured = model
        self._correction = Correction()
        self.model = corrected(model, self._correction)

    def observe(self, work: BatchWork, duration_s: float) -> None:
        """Update the correction with an iteration that has ended."""
        self._correction = observe(self._correction, self._configured, work, duration_s)
        self.model = corrected(self._configured, self._correction)
