"""Requests that other routers have just sent to one replica and that its snapshot does not include yet.

A routing decision is visible in the replica's snapshot only after the verdict and the transfer of the
snapshot. Meanwhile a burst through several routers would follow the same numbers to the same replica. A
placement counts until a snapshot has arrived that must include it, and at most for a bounded time, because no
snapshot shows a rejected one.
"""

from collections import deque
from typing import NamedTuple

SETTLED_S = 0.01
"""A snapshot that comes this long after the placement's message includes it: verdicts take a few
milliseconds."""

LONGEST_S = 0.1
"""No placement counts for longer."""

MOST = 256
"""Placements remembered, each of up to some milliseconds of one router's requests."""


class PeerLoad(NamedTuple):
    """Requests, and their prompts together."""

    requests: int
    prompt_tokens: int


class PeerPlacements:
    """Placements of other routers at one replica, each with the time at which its message came."""

    def __init__(self) -> None:
        self.placements: deque[tuple[float, PeerLoad]] = deque(maxlen=MOST)

    def add(self, placed: PeerLoad, now_s: float) -> None:
        """Add requests that another router has sent there."""
        self.placements.append((now_s, placed))

    def not_in_snapshot(self, snapshot_s: float, now_s: float) -> PeerLoad:
        """Return the placements that the snapshot which came at `snapshot_s` does not include."""
        placements = self.placements
        settled_s = max(snapshot_s - SETTLED_S, now_s - LONGEST_S)
        while placements and placements[0][0] <= settled_s:
            placements.popleft()
        recent = tuple(placements)  # another thread may add to it
        return PeerLoad(
            sum(placed.requests for _, placed in recent), sum(placed.prompt_tokens for _, placed in recent)
        )
