"""Delays between connection attempts."""

from random import Random


class Backoff:
    """Delays that double up to a maximum, each drawn from its upper half so that routers do not synchronize.

    first_s, longest_s: first and longest delay.
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
        """Start again with the first delay, after a successful connection."""
        self._next_s = self._first_s
