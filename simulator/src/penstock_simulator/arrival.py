"""One request of a workload."""

from typing import NamedTuple


class Arrival(NamedTuple):
    """A request with its arrival time and true lengths.

    arrival_s: its arrival, or that of its session.
    output_tokens: true length of its output, including `thinking_tokens`.
    session: name of the sequence of requests that it belongs to, each sent when the previous one has ended;
        "" for a single request. stage: its index in the session.
    """

    id: str
    arrival_s: float
    tier: str
    prompt_tokens: int
    output_tokens: int
    thinking_tokens: int = 0
    session: str = ""
    stage: int = 0
