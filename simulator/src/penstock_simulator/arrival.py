"""One request of a workload, as it comes to a fleet."""

from typing import NamedTuple


class Arrival(NamedTuple):
    """A request that arrives.

    output_tokens: its true length, all of it. thinking_tokens: how many of those are thought, not answered.
    session: of requests that follow one another, each arriving when the one before has finished; empty where
        it stands alone. stage: its place in the session. `arrival_s` is then the session's own.
    """

    id: str
    arrival_s: float
    tier: str
    prompt_tokens: int
    output_tokens: int
    thinking_tokens: int = 0
    session: str = ""
    stage: int = 0
