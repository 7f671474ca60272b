"""What became of one request."""

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """What a request was answered first, whatever happened to it later."""

    ADMITTED = "admitted"
    BEST_EFFORT = "best-effort"
    REJECTED = "rejected"
    FAILED = "failed"  # longer than any engine takes: refused before a policy was asked


class Outcome(NamedTuple):
    """One request, as it ended.

    arrival_s: when it was really sent: later than its arrival where it waited for an earlier stage.
    output_tokens: that came out.
    replica: that served it; "" where none did.
    hops: replicas that answered for their capacity.
    ttft_s, tpot_s, e2e_s: None where there was no such thing; `tpot_s` as its tier judges it.
    met: every target that it carries was kept, whatever it was answered.
    """

    id: str
    tier: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    verdict: Verdict
    replica: str
    hops: int
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    met: bool
    session: str = ""
    stage: int = 0
