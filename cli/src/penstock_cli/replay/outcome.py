"""The outcome of one replayed request."""

from dataclasses import dataclass
from enum import StrEnum


class RequestEnding(StrEnum):
    """How a request ended. All but `failed` are the pool's verdicts."""

    ADMITTED = "admitted"
    BEST_EFFORT = "best-effort"
    REJECTED = "rejected"  # 429: could not be served in time
    FAILED = "failed"  # an error, a broken stream, or no answer in time


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """One request's row.

    arrival_s: planned, since the replay began.
    output_tokens: tokens received.
    tpot_s: as the tier judges it.
    reason: why it was rejected or failed.
    cached_tokens: of its prompt, that the engine found in its prefix cache; None if it does not report it.
    turn: its place in its session; 0 begins one, and for a request of no session.
    """

    id: str
    tier: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    ending: RequestEnding
    replica: str = ""
    hops: int = 0
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    met: bool = False
    reason: str = ""
    cached_tokens: int | None = None
    turn: int = 0
