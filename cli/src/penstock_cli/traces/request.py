"""One line of a trace: when a request came, and how long its prompt and its answer were."""

from typing import NamedTuple


class TraceRequest(NamedTuple):
    """A recorded request.

    arrival_s: since the trace's first request.
    tier: as the trace names it; empty where it names none.
    prefix_blocks: what its prompt consists of, 512 tokens a block; equal numbers are equal content. Empty
        where the trace does not tell: then its prompt is like no other.
    session: of requests that follow one another, each sent when the one before it has ended; empty for none.
    stage: its place in the session.
    thinking_tokens: how many of its output tokens are thought before the answer proper.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    tier: str = ""
    prefix_blocks: tuple[int, ...] = ()
    session: str = ""
    stage: int = 0
    thinking_tokens: int = 0


class TraceError(Exception):
    """A trace that cannot be read: one line with file, line number and column."""
