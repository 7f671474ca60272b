"""A replica's speculation settings with the acceptance rate that it has measured."""

from collections.abc import Sequence

from penstock_core.timing.acceptance_rate import Acceptance, Drafted, observe
from penstock_core.timing.speculation import Speculation


class MeasuredSpeculation:
    """Speculation settings whose acceptance rate is measured online.

    measured: the settings to plan with; None without a drafter.
    """

    def __init__(self, told: Speculation | None) -> None:
        self._told = self.measured = told
        self._acceptance = Acceptance(0.0 if told is None else told.acceptance)

    def observe(self, drafted: Sequence[Drafted]) -> None:
        """Update the acceptance rate with an iteration that has ended."""
        if drafted and self._told is not None:
            self._acceptance = observe(self._acceptance, drafted)
            self.measured = self._acceptance.measured(self._told)
