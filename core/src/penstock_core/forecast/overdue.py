"""Decides when a request in its engine counts as lost.

An engine may accept a request and never continue it, while its health check succeeds. The planner forecasts
the request's progress, so a request is lost once it is late against that forecast by more than an allowance:
nine times the forecast, at least the longest pause of a healthy engine, at most the pool's setting.

The expected sign of progress depends on where the request is:

- running: its own tokens, one per iteration;
- queued: any progress of the engine, since a long queue is not a failure; and its own start, once the work of
  all present requests would have been done ten times;
- coming: an entry in the engine's report, which lists all its requests;
- unseen: its end. If the engine does not report, the progress of an answer is unknown, so its forecast is the
  wait and the longest answer that it may have.
"""

from enum import StrEnum
from typing import NamedTuple

TIMES = 9.0
"""Allowed ratio to the forecast.

Forecast errors are smaller: the histogram of the time model's error ends at 2.
"""

LEAST_S = 20.0
"""Longest pause of a healthy engine: a kernel compiled or a graph captured at first use, a paused machine."""


class Where(StrEnum):
    """The phase of a request in its engine, as far as is known."""

    RUNNING = "running"
    QUEUED = "queued"
    COMING = "coming"  # sent, and not in reports that list all requests
    UNSEEN = "unseen"  # sent, and not visible before it ends


class Signs(NamedTuple):
    """Last signs of a request.

    own_s: when it was sent or last progressed. engine_s: when its engine last progressed.
    """

    where: Where
    own_s: float
    engine_s: float


class Expected(NamedTuple):
    """The planner's forecast for a request.

    first_s: time until its first token. step_s: duration of an iteration. work_s: time of all the engine's
        work, in full batches.
    tokens: most tokens that its answer may have.
    """

    first_s: float
    step_s: float
    work_s: float
    tokens: int


def is_overdue(signs: Signs, expected: Expected, now_s: float, most_s: float) -> bool:
    """Return whether a request counts as lost. most_s: largest allowed delay against its forecast."""
    own_s = now_s - signs.own_s
    start_s = max(expected.first_s, expected.step_s, expected.work_s)
    if signs.where is Where.QUEUED:
        silent_s = min(own_s, now_s - signs.engine_s)
        stalled = silent_s > patience_s(min(start_s, most_s), most_s)
        return stalled or own_s > (1 + TIMES) * start_s + max(LEAST_S, most_s)
    forecast_s = {
        Where.RUNNING: expected.step_s,
        Where.COMING: 0.0,
        Where.UNSEEN: start_s + expected.tokens * expected.step_s,
    }
    return own_s > patience_s(forecast_s[signs.where], most_s)


def patience_s(forecast_s: float, most_s: float) -> float:
    """Return how long to wait for an event that is forecast to take this long."""
    return forecast_s + min(max(TIMES * forecast_s, LEAST_S), most_s)
