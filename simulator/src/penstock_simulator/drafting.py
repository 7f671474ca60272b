"""What a replica knows of its drafter: what it can do, and how often that was right so far."""

from collections.abc import Sequence

from penstock_core.timing.acceptance_rate import Acceptance, Drafted, observe
from penstock_core.timing.speculation import Speculation


class Drafting:
    """A drafter, measured online.

    measured: what to plan with; None where there is no drafter.
    """

    def __init__(self, told: Speculation | None) -> None:
        self._told = self.measured = told
        self._acceptance = Acceptance(0.0 if told is None else told.acceptance)

    def observe(self, drafted: Sequence[Drafted]) -> None:
        """Learn from an iteration that has ended."""
        if drafted and self._told is not None:
            self._acceptance = observe(self._acceptance, drafted)
            self.measured = self._acceptance.measured(self._told)
