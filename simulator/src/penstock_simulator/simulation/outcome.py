"""The outcome of one simulated request."""

from enum import StrEnum
from typing import NamedTuple


class FirstVerdict(StrEnum):
    """The verdict on a request, regardless of a later promotion."""

    ADMITTED = "admitted"
    BEST_EFFORT = "best-effort"
    REJECTED = "rejected"
    FAILED = "failed"  # longer than any engine serves; no policy decided about it


class SimulatedOutcome(NamedTuple):
    """One request that has ended.

    arrival_s: when it was sent, which is later than its arrival if it waited for an earlier stage.
    output_tokens: tokens generated.
    replica: replica that served it; "" if none did.
    hops: replicas that decided about it.
    ttft_s, tpot_s, e2e_s: None if they do not exist. tpot_s: as its tier's `judge` says.
    cached_tokens: prompt tokens that were found in the prefix cache.
    met: whether it met every target of its tier, whatever its verdict.
    """

    id: str
    tier: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    verdict: FirstVerdict
    replica: str
    hops: int
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    met: bool
    session: str = ""
    stage: int = 0
    cached_tokens: int = 0
