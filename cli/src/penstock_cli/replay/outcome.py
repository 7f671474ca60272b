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
    """The outcome of one request.

    arrival_s: planned arrival, in seconds since the replay began.
    output_tokens: tokens received.
    tpot_s: as its tier's `judge` says.
    reason: why it was rejected or failed.
    cached_tokens: prompt tokens that the engine found in its prefix cache; None if it does not report them.
    turn: index in its session; 0 without a session.
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
