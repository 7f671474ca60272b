"""What the engine has shown of itself: how long its steps take, how often its drafts are accepted.

Most steps are only noted. The time model is corrected by all of them once somebody asks for it, which while a
plan stands nobody does.
"""

from collections.abc import Sequence

from penstock_core.timing.acceptance_rate import Acceptance, Drafted
from penstock_core.timing.acceptance_rate import observe as observe_drafts
from penstock_core.timing.correction import Correction, corrected
from penstock_core.timing.correction import observe as observe_step
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

from penstock_vllm.pipeline import Measured

MOST_NOTED = 16
"""Steps that are noted before they are learned from, whether anybody asks or not."""


class Learned:
    """Beliefs, corrected as steps end.

    speculation: what the drafter does; None where there is none.
    """

    def __init__(self, told: TimeModel, drafter: Speculation | None) -> None:
        self._told, self._drafter = told, drafter
        self._correction = Correction()
        self._acceptance = Acceptance(drafter.acceptance if drafter else 0.0)
        self._noted: list[Measured] = []
        self._model = corrected(told, self._correction)
        self.speculation = drafter

    @property
    def model(self) -> TimeModel:
        """The time model, corrected by every step until now."""
        if self._noted:
            self._learn()
        return self._model

    def step(self, measured: Measured) -> None:
        """A step was measured."""
        self._noted.append(measured)
        if len(self._noted) >= MOST_NOTED:
            self._learn()

    def _learn(self) -> None:
        for work, seconds in self._noted:
            self._correction = observe_step(self._correction, self._told, work, seconds)
        self._model = corrected(self._told, self._correction)
        self._noted.clear()

    def drafts(self, drafted: Sequence[Drafted]) -> None:
        """Drafts were verified."""
        if drafted and self._drafter is not None:
            self._acceptance = observe_drafts(self._acceptance, drafted)
            self.speculation = self._acceptance.measured(self._drafter)
