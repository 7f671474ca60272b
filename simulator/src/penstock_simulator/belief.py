"""What the engine's policy believes of its speed: the pool's time model, corrected by what it measures."""

from penstock_core.timing.correction import Correction, corrected, observe
from penstock_core.timing.time_model import BatchWork, TimeModel


class Belief:
    """A time model that learns.

    model: the one to plan with.
    """

    def __init__(self, model: TimeModel) -> None:
        self._told = model
        self._correction = Correction()
        self.model = corrected(model, self._correction)

    def observe(self, work: BatchWork, duration_s: float) -> None:
        """Learn from an iteration that has ended."""
        self._correction = observe(self._correction, self._told, work, duration_s)
        self.model = corrected(self._told, self._correction)
