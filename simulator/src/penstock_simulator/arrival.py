"""One request of a workload."""

from collections.abc import Sequence
from typing import NamedTuple


class Arrival(NamedTuple):
    """A request with its arrival time and true lengths.

    arrival_s: its arrival time; that of its session, if it has a think time.
    output_tokens: true length of its output, including `thinking_tokens`.
    session: name of the sequence of requests that it belongs to, each sent when the previous one has ended;
        "" for a single request. stage: index of this turn in the session.
    think_s: seconds from the end of the session's previous request until it is sent, in a closed loop; None:
        it is sent when the previous one has ended, at `arrival_s` at the earliest.
    hash_ids: ids of its prompt's blocks of `hash_id_tokens` tokens; equal ids mean that these blocks and all
        before them are equal. Empty if unknown. salt: requests with different salts share nothing.
    """

    id: str
    arrival_s: float
    tier: str
    prompt_tokens: int
    output_tokens: int
    thinking_tokens: int = 0
    session: str = ""
    stage: int = 0
    think_s: float | None = None
    hash_ids: Sequence[int] = ()
    hash_id_tokens: int = 512
    salt: str = ""
