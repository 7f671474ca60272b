"""Delays between connection attempts."""

from random import Random


class Backoff:
    """Doubling waits up to a cap, each drawn from its upper half, so that routers do not come back in step.

    first_s, longest_s: of the waits.
    """

    def __init__(self, random: Random, first_s: float = 0.05, longest_s: float = 2.0) -> None:
        self._random, self._first_s, self._longest_s = random, first_s, longest_s
        self._next_s = first_s

    def wait_s(self) -> float:
        """Return the next wait."""
        ceiling_s = self._next_s
        self._next_s = min(ceiling_s * 2, self._longest_s)
        return ceiling_s * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin anew: the last connection was good."""
        self._next_s = self._first_s
