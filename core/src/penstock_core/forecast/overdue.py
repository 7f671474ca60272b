"""When a request that its engine has taken counts as lost.

An engine may take a request and never go on with it, while its health check answers as ever. What it should
have done by now is the planner's own forecast, so a request is lost once it is late against that by more than
an allowance: nine times the forecast, no less than what stops a sound engine, no more than the pool says.

What counts as a sign of progress depends on where the request is:

- running: its own tokens, one an iteration;
- queued: anything the engine does, since a long queue is no fault; and its own start, once the work of all
  that are there would have been done ten times;
- coming: a place in the engine's report, which names all that it holds;
- unseen: its end. Nothing shows how far a whole answer is where the engine does not report, so its forecast
  is the wait and the longest answer that it may have.
"""

from enum import StrEnum
from typing import NamedTuple

TIMES = 9.0
"""Forecasts are off by less: the histogram of the time model's error ends at 2."""

LEAST_S = 20.0
"""A sound engine stops for seconds: a kernel compiled or a graph captured at first use, a machine paused."""


class Where(StrEnum):
    """Where a request is at its engine, as far as is known."""

    RUNNING = "running"
    QUEUED = "queued"
    COMING = "coming"  # sent, and not in reports that name all
    UNSEEN = "unseen"  # sent, and nothing shows it before it ends


class Signs(NamedTuple):
    """What was last heard of a request.

    own_s: when it was sent, or last went on. engine_s: when its engine last showed any sign.
    """

    where: Where
    own_s: float
    engine_s: float


class Expected(NamedTuple):
    """The planner's forecast for it.

    first_s: until its first token. step_s: an iteration. work_s: all work there, in full batches.
    tokens: most that its answer may have.
    """

    first_s: float
    step_s: float
    work_s: float
    tokens: int


def is_overdue(signs: Signs, expected: Expected, now_s: float, most_s: float) -> bool:
    """Return whether a request counts as lost. most_s: longest that it may be later than its forecast."""
    own_s = now_s - signs.own_s
    start_s = max(expected.first_s, expected.step_s, expected.work_s)
    if signs.where is Where.QUEUED:
        silent_s = min(own_s, now_s - signs.engine_s)
        stands_still = silent_s > patience_s(min(start_s, most_s), most_s)
        return stands_still or own_s > (1 + TIMES) * start_s + max(LEAST_S, most_s)
    forecast_s = {
        Where.RUNNING: expected.step_s,
        Where.COMING: 0.0,
        Where.UNSEEN: start_s + expected.tokens * expected.step_s,
    }
    return own_s > patience_s(forecast_s[signs.where], most_s)


def patience_s(forecast_s: float, most_s: float) -> float:
    """Return how long to wait for what is forecast to take so long."""
    return forecast_s + min(max(TIMES * forecast_s, LEAST_S), most_s)
