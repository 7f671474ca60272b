"""Slow steps of an engine: how often they come, how slow they are, and how many a plan must survive.

A step now and then takes several times as long as planned: a stalled host, a neighbour that takes memory
bandwidth. A quantile of single steps does not cover that: one in fifty is rarer than one in forty, and an
answer of a thousand tokens meets twenty. So the tail of step times has two numbers, the share of steps that
are slow and the mean excess of those, and a plan leaves time for as many slow steps as may come before a
deadline (`spare_steps`).

Several slow steps in a row are another matter: the engine has changed its speed, which the correction follows
(`correction`). From the third on they are not counted.

The state is a value: `after` returns the next one.

The constants are chosen on samples 100 and 101 of `bench/disturbances.py` (ADR 0039).
"""

from math import exp, sqrt
from typing import NamedTuple

SLOW = 1.5
"""Ratio to the mean from which a step is slow. Noise and the steps of kernels stay below it."""

CHANGED_STEPS = 3
"""Slow steps in a row that are a change of speed. One slow step in fifty does that once in 125,000."""

MEMORY_STEPS = 1000.0
"""Steps after which one has decayed to a third: less than a minute."""

PRIOR_STEPS = 60.0
"""Weight of the prior, that no step is slow, in steps."""

LEAST_CHANCE = 1 / 200
"""Share of slow steps from which plans leave time for them. Rarer ones are left to other margins."""

MOST_EXCESS = 9.0
"""Largest excess that one slow step teaches."""

LATE_FIRST_TOKENS = 0.02
"""Risk that a first token is late because of more slow steps than there is time for."""

LATE_WINDOWS = 0.02
"""Risk that any window of an answer is, shared among all of its windows."""

MANY_STEPS = 100.0
"""Expected slow steps from which their number is normally distributed."""


class StepTail(NamedTuple):
    """Slow steps of an engine.

    chance: share of its steps. excess: mean of what they take beyond the mean step, relative to it.
    in_a_row: slow steps just now; once the speed has changed, steps that the mean has not reached yet.
    """

    chance: float = 0.0
    excess: float = 0.0
    in_a_row: int = 0

    def after(self, relative: float, observed: int) -> "StepTail":
        """Return the tail after one more step. relative: to the mean. observed: steps before it."""
        if relative <= SLOW:
            return StepTail(self.chance * (1.0 - _weight(observed)), self.excess)
        tail = self._replace(in_a_row=self.in_a_row + 1)
        if tail.in_a_row >= CHANGED_STEPS:
            return tail
        weight = _weight(observed)
        chance = self.chance * (1.0 - weight) + weight
        learned = weight / chance * (min(relative - 1.0, MOST_EXCESS) - self.excess)
        return tail._replace(chance=chance, excess=self.excess + learned)

    def fading(self, left: float) -> "StepTail":
        """Return the tail of which this share is left."""
        return self._replace(chance=self.chance * left)


NO_TAIL = StepTail()


def _weight(observed: int) -> float:
    """Weight of one step beside those before it."""
    return 1.0 / min(observed + PRIOR_STEPS, MEMORY_STEPS)


def spare_steps(chance: float, steps: float, risk: float) -> float:
    """Return how many of these steps a plan expects to be slow, so that more are with at most this risk.

    By the Poisson distribution, a little more cautious than the binomial. Plain arithmetic, so that compiled
    code can call it.
    """
    expected = chance * steps
    if expected > MANY_STEPS:
        return min(expected + 3.0 * sqrt(expected), steps)
    spare, probability = 0.0, exp(-expected)
    more = 1.0 - probability
    while more > risk and spare < steps:
        spare += 1.0
        probability *= expected / spare
        more -= probability
    return spare


def step_end_s(planned_end_s: float, planned_s: float, slow_excess: float, now_s: float) -> float:
    """Return when the step in progress ends. One that is overdue is a slow one."""
    if now_s <= planned_end_s:
        return planned_end_s
    return max(planned_end_s + slow_excess * planned_s, now_s)
