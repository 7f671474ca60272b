"""A replica's speculation settings with the acceptance rate that it has measured."""

from collections.abc import Sequence

from penstock_core.timing.acceptance_rate import Acceptance, Drafted, observe
from penstock_core.timing.speculation import Speculation


class MeasuredSpeculation:
    """Speculation settings whose acceptance rate is measured online.

    measured: the settings to plan with; None without a drafter.
    """

    def __init__(self, configured: Speculation | None) -> None:
        self._configured = self.measured = configured
        self._acceptance = Acceptance(0.0 if configured is None else configured.acceptance)

    def observe(self, drafted: Sequence[Drafted]) -> None:
        """Update the acceptance rate with an iteration that has ended."""
        if drafted and self._configured is not None:
            self._acceptance = observe(self._acceptance, drafted)
            self.measured = self._acceptance.measured(self._configured)
