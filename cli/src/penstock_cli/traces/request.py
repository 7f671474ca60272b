"""One recorded request of a trace."""

from typing import NamedTuple


class TraceRequest(NamedTuple):
    """A recorded request.

    arrival_s: seconds since the trace's first request.
    tier: tier name in the trace; "" if it names none.
    prefix_blocks: ids of its prompt's blocks; equal ids are equal content up to the block's end. Empty if the
        trace has none, which makes its prompt unique.
    session: name of the session that it is a turn of; "" for none. A turn is sent after the answer to the
        previous one.
    stage: index of this turn in the session.
    think_s: seconds from the answer to the session's previous request until this one is sent; None if
        unknown, and for a session's first request.
    thinking_tokens: how many of its output tokens are thinking tokens.
    timed: whether its arrival is recorded; else it is that of the session's request before.
    number: its place in the trace by arrival, from 0.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    tier: str = ""
    prefix_blocks: tuple[int, ...] = ()
    session: str = ""
    stage: int = 0
    thinking_tokens: int = 0
    think_s: float | None = None
    timed: bool = True
    number: int = 0


BY_ARRIVAL = -1
"""Stage of a session's request, as long as it is not known how many arrived before it."""

MOST_SPAN_S = 366 * 86_400.0
"""Longest trace, and longest think time: a year."""


class TraceError(Exception):
    """A trace that cannot be read: a message with file, line number and column."""
