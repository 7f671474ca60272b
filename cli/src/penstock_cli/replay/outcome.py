"""What became of one request, as the client saw it."""

from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    """How a request ended. The first three are the pool's verdicts."""

    ADMITTED = "admitted"
    BEST_EFFORT = "best-effort"
    REJECTED = "rejected"  # 429: could not be served in time
    FAILED = "failed"  # an error, a broken stream, or no answer in time


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request's row.

    arrival_s: planned, since the replay began.
    output_tokens: that came out.
    tpot_s: as the tier judges it.
    reason: why it was rejected or failed, in few words.
    """

    id: str
    tier: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    ending: Ending
    replica: str = ""
    hops: int = 0
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    met: bool = False
    reason: str = ""
