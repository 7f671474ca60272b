"""Requests that other routers have just sent to one replica and that its snapshot does not include yet.

A replica's snapshot shows a request only after its verdict and the transfer of the snapshot. Without this
module, several routers would meanwhile send a burst to the same replica. A placement counts until a snapshot
has arrived that must include it, and for at most `LONGEST_S`, because no snapshot shows a rejected request.
"""

from collections import deque
from typing import NamedTuple

SETTLED_S = 0.01
"""A snapshot that arrives this long after a placement's message includes it, as verdicts take a few
milliseconds."""

LONGEST_S = 0.1
"""Longest time for which a placement counts."""

MOST = 256
"""Most placements kept. Each has one router's requests of a few milliseconds."""


class PeerLoad(NamedTuple):
    """Requests, and the sum of their prompt tokens."""

    requests: int
    prompt_tokens: int


class PeerPlacements:
    """Placements of other routers at one replica, each with the time at which its message was received."""

    def __init__(self) -> None:
        self.placements: deque[tuple[float, PeerLoad]] = deque(maxlen=MOST)

    def add(self, placed: PeerLoad, now_s: float) -> None:
        """Add requests that another router has sent to the replica."""
        self.placements.append((now_s, placed))

    def not_in_snapshot(self, snapshot_s: float, now_s: float) -> PeerLoad:
        """Return the sum of placements that are not in the snapshot received at `snapshot_s`."""
        placements = self.placements
        settled_s = max(snapshot_s - SETTLED_S, now_s - LONGEST_S)
        while placements and placements[0][0] <= settled_s:
            placements.popleft()
        recent = tuple(placements)  # another thread may add to it
        return PeerLoad(
            sum(placed.requests for _, placed in recent), sum(placed.prompt_tokens for _, placed in recent)
        )
