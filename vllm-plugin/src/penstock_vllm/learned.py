"""What the engine has shown of itself: how long its steps take, how often its drafts are accepted."""

from collections.abc import Sequence

from penstock_core.acceptance import Acceptance, Drafted
from penstock_core.acceptance import observe as observe_drafts
from penstock_core.speculation import Speculation
from penstock_core.time_model import BatchWork, TimeModel
from penstock_core.time_model_correction import Correction, corrected
from penstock_core.time_model_correction import observe as observe_step


class Learned:
    """Beliefs, corrected as steps end.

    model: the time model to plan with. speculation: what the drafter does; None where there is none.
    """

    def __init__(self, told: TimeModel, drafter: Speculation | None) -> None:
        self._told, self._drafter = told, drafter
        self._correction = Correction()
        self._acceptance = Acceptance(drafter.acceptance if drafter else 0.0)
        self.model = corrected(told, self._correction)
        self.speculation = drafter

    def step(self, work: BatchWork, seconds: float) -> None:
        """A step was measured."""
        self._correction = observe_step(self._correction, self._told, work, seconds)
        self.model = corrected(self._told, self._correction)

    def drafts(self, drafted: Sequence[Drafted]) -> None:
        """Drafts were verified."""
        if drafted and self._drafter is not None:
            self._acceptance = observe_drafts(self._acceptance, drafted)
            self.speculation = self._acceptance.measured(self._drafter)
