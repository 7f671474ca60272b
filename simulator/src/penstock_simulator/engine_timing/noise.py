"""Random variation of iteration times, seeded.

Each iteration has log-normal noise of 3 %. One in a thousand is slow, by a factor of 1.2 to 2. Over minutes
the speed drifts by up to 5 %, as with GPU clocks and neighbouring loads.
"""

from math import exp, pi, sin
from random import Random

NOISE = 0.03
"""Deviation of the logarithm of an iteration's time."""
SLOW_STEP_CHANCE = 0.001
"""Share of slow iterations."""
SLOW_STEP_LEAST, SLOW_STEP_MOST = 1.2, 2.0
"""Range of the factor of slow iterations."""
DRIFT = 0.05
"""Largest drift, as a share."""
DRIFT_PERIODS_S = (97.0, 263.0, 611.0)
"""Periods of the waves that drift is made of."""


class TimingNoise:
    """Factors on iteration times, deterministic in the seed and the number of calls."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._phases = [self._random.uniform(0, 2 * pi) for _ in DRIFT_PERIODS_S]

    def factor(self, at_s: float) -> float:
        """Return the factor of the next iteration, which starts at `at_s` seconds."""
        noise = exp(self._random.gauss(0.0, NOISE))
        slow = self._random.random() < SLOW_STEP_CHANCE
        step = self._random.uniform(SLOW_STEP_LEAST, SLOW_STEP_MOST) if slow else 1.0
        return noise * step * self.drift(at_s)

    def drift(self, at_s: float) -> float:
        """Return the drift as a factor at `at_s` seconds."""
        waves = zip(DRIFT_PERIODS_S, self._phases, strict=True)
        total = sum(sin(2 * pi * at_s / period_s + phase) for period_s, phase in waves)
        return 1 + DRIFT * total / len(DRIFT_PERIODS_S)
