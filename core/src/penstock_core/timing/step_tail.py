"""Slow steps of an engine: how frequent they are, how slow they are, and for how many a plan leaves time.

Occasionally a step takes several times as long as planned, because the host stalls or another process uses
memory bandwidth. A quantile of single steps does not cover that: a step in fifty is beyond the quantile of
one in forty, and an answer of a thousand tokens has twenty such steps. So the tail of step times has two
numbers, the share of slow steps and their mean excess, and a plan leaves time for as many slow steps as may
occur before a deadline (`spare_steps`).

Several slow steps in a row mean that the engine's speed has changed, which the correction follows
(`correction`). From the third on they do not count as slow.

The state is a value: `after` returns the next one.

The constants are chosen on samples 100 and 101 of `bench/disturbances.py`, `FIRST_WEIGHT` on 60 to 63
(ADR 0039).
"""

from math import exp, sqrt
from typing import NamedTuple

SLOW = 1.5
"""Ratio to the mean from which a step is slow. Noise and the steps of kernels stay below it."""

CHANGED_STEPS = 3
"""Slow steps in a row that count as a change of speed. With one slow step in fifty, this many occur in a row
by chance once in 125,000 steps."""

MEMORY_STEPS = 1000.0
"""Steps after which one has decayed to a third: less than a minute."""

PRIOR_STEPS = 60.0
"""Weight of the prior, that no step is slow, in steps."""

FIRST_WEIGHT = 2.0
"""Number of slow steps that the first one counts as (Laplace's rule of succession). Counted as one, it would
be forgotten after 140 steps; with one slow step in fifty, 23 % of engines have had fewer than two by then."""

LEAST_CHANCE = 1 / 200
"""Share of slow steps from which plans leave time for them. Other margins cover rarer ones."""

MOST_EXCESS = 9.0
"""Largest excess that is learned from one slow step."""

LATE_FIRST_TOKENS = 0.02
"""Risk that a first token is late because of more slow steps than there is time for."""

LATE_WINDOWS = 0.02
"""Risk that any window of an answer is late for that reason, divided among its windows."""

MANY_STEPS = 100.0
"""Expected number of slow steps from which the normal distribution is used."""


class StepTail(NamedTuple):
    """Slow steps of an engine.

    chance: share of its steps. excess: mean time beyond the mean step, relative to the mean step.
    in_a_row: present number of slow steps in a row; after a change of speed, until the mean has followed it.
    """

    chance: float = 0.0
    excess: float = 0.0
    in_a_row: int = 0

    def after(self, relative: float, observed: int) -> "StepTail":
        """Return the tail after one more step.

        relative: its duration, relative to the mean. observed: number of steps before it.
        """
        if relative <= SLOW:
            return StepTail(self.chance * (1.0 - _weight(observed)), self.excess)
        tail = self._replace(in_a_row=self.in_a_row + 1)
        if tail.in_a_row >= CHANGED_STEPS:
            return tail
        weight = _weight(observed) * (1.0 if self.chance > 0.0 else FIRST_WEIGHT)
        chance = self.chance * (1.0 - weight) + weight
        learned = weight / chance * (min(relative - 1.0, MOST_EXCESS) - self.excess)
        return tail._replace(chance=chance, excess=self.excess + learned)

    def fading(self, left: float) -> "StepTail":
        """Return the tail after it has faded to this share."""
        return self._replace(chance=self.chance * left)


NO_TAIL = StepTail()


def _weight(observed: int) -> float:
    """Return the weight of one step relative to those before it."""
    return 1.0 / min(observed + PRIOR_STEPS, MEMORY_STEPS)


def spare_steps(chance: float, steps: float, risk: float) -> float:
    """Return a number of slow steps that is exceeded among these steps with at most this risk.

    Uses the Poisson distribution, which is slightly more cautious than the binomial. Plain arithmetic, so
    that compiled code can call it.
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
    """Return when the step in progress ends. An overdue step is assumed to be slow."""
    if now_s <= planned_end_s:
        return planned_end_s
    return max(planned_end_s + slow_excess * planned_s, now_s)
