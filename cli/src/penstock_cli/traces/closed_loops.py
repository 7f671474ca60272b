"""Sessions as closed loops: each request is sent after the previous answer and a think time.

The recorded time of a later turn is valid only at the recorded speed: a faster server would have received it
earlier, a slower one later. In a closed loop only the start of a session is fixed, and each later turn has a
think time. If the trace has none, the think time is estimated: the recorded gap to the previous turn, less
the time of the previous answer. Traces do not record answer times either. They are estimated at a constant
time per token: the 1st percentile of gap over answer tokens, because the shortest gaps have no think time.

A session may run faster than it was recorded, so its turns must be known when it begins. Therefore all of the
trace is read first.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import ceil

from penstock_cli.traces.request import TraceRequest

SHORTEST_GAPS = 0.01
"""Quantile of gap over answer tokens that is taken as the time of a token."""


def in_closed_loops(requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    """Yield requests by the start of their sessions, each session's turns in a row, at its start.

    Every turn but the first has a think time. A request without a session is unchanged.
    """
    sessions: dict[str | int, list[TraceRequest]] = {}
    for number, request in enumerate(requests):
        sessions.setdefault(request.session or number, []).append(request)
    for turns in sessions.values():
        turns.sort(key=lambda turn: (turn.arrival_s, turn.stage))
    token_s = _seconds_per_token(sessions.values())
    for turns in sessions.values():
        start_s = turns[0].arrival_s
        yield turns[0]._replace(stage=0, think_s=None)
        for stage, (before, turn) in enumerate(pairwise(turns), start=1):
            think_s = _think_s(before, turn, token_s) if turn.think_s is None else turn.think_s
            yield turn._replace(arrival_s=start_s, stage=stage, think_s=think_s)


def _seconds_per_token(sessions: Iterable[Sequence[TraceRequest]]) -> float:
    """Return the estimated time of an answer's token, from gaps before turns without a think time."""
    paces_s = sorted(
        _gap_s(before, turn) / before.output_tokens
        for turns in sessions
        for before, turn in pairwise(turns)
        if turn.think_s is None
    )
    return paces_s[max(ceil(SHORTEST_GAPS * len(paces_s)) - 1, 0)] if paces_s else 0.0


def _think_s(before: TraceRequest, turn: TraceRequest, token_s: float) -> float:
    return max(_gap_s(before, turn) - before.output_tokens * token_s, 0.0)


def _gap_s(before: TraceRequest, turn: TraceRequest) -> float:
    return turn.arrival_s - before.arrival_s
