"""Online quantile of step times: the ratio to the mean that only one iteration in forty exceeds.

A mean is exceeded by every other iteration, and lines are exceeded at every step of the kernels, so plans
need a quantile. It is tracked by stochastic approximation: an iteration that exceeds the margin widens it
much, one that does not narrows it a little, in balance at the quantile. Steps are in usual errors, so a
steady engine has a small margin and an uneven one a large margin.
"""

MARGIN_QUANTILE = 0.975
MARGIN_STEP = 0.2
"""Change of the margin per iteration, in usual errors."""

MOST_MARGIN = 1.5
"""Largest margin. An engine that exceeds it needs another model, not a larger margin."""

MOST_MARGIN_ERRORS = 4.0
"""Largest margin in usual errors, so that a margin learned under disturbance decays with the errors."""

STALL_ERRORS = 5.0
"""Deviation in usual errors at which a ratio is clipped."""

LEAST_ERROR = 0.005
"""Smallest usual error, so that the first deviation after exact iterations is not taken for a stall."""

ERROR_RATE = 0.05
"""Weight of one iteration in the usual error."""


def error_after(error: float, relative: float) -> float:
    """Return the mean absolute error after an iteration of this duration, relative to the mean."""
    return error + ERROR_RATE * (min(abs(relative - 1), 1.0) - error)


def margin_after(margin: float, error: float, relative: float) -> float:
    """Return the next margin: much larger if exceeded, else slightly smaller, in balance at one in forty."""
    share = MARGIN_QUANTILE if relative > margin else MARGIN_QUANTILE - 1
    usual = max(error, LEAST_ERROR)
    most = min(MOST_MARGIN, 1 + MOST_MARGIN_ERRORS * usual)
    return min(max(margin + MARGIN_STEP * usual * share, 1.0), most)


def clipped(relative: float, error: float) -> float:
    """Return the ratio to learn a mean from: a stall counts as a few usual errors."""
    stall = STALL_ERRORS * max(error, LEAST_ERROR)
    return min(max(relative, 1 - stall), 1 + stall)
