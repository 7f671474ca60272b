"""A replica as routers see it: its last visible snapshot, and the requests sent to it since.

A replica publishes a snapshot when an iteration begins and with its verdicts. Routers see it `age_s` later,
as in production. The first snapshot is visible immediately. A router counts the requests that it sent itself
until a snapshot that includes their verdict is visible, and those of other routers after `placement_delay_s`.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import RequestId
from penstock_core.forecast.snapshot import snapshot
from penstock_core.routing.replica_load import ReplicaLoad

UNDECIDED_S = float("inf")


class _SentRequest(NamedTuple):
    router: int
    uncached_tokens: int
    sent_s: float
    decided_s: float


class _Published(NamedTuple):
    now_s: float
    read_view: Callable[[], ReplicaView]


class ReplicaSnapshots:
    """The snapshots of one replica: those not visible yet, and the last visible one."""

    def __init__(self, name: str, first: ReplicaView, age_s: float, placement_delay_s: float) -> None:
        self._name, self._age_s, self._placement_delay_s = name, age_s, placement_delay_s
        self._pending: deque[_Published] = deque()
        self._unread: _Published | None = None
        self._visible, self._visible_s = snapshot(first), first.now_s
        self._sent: dict[RequestId, _SentRequest] = {}

    def sent(self, request_id: RequestId, router: int, uncached_tokens: int, now_s: float) -> None:
        """Record that a router has sent a request to the replica, which has to compute these tokens of it."""
        self._sent[request_id] = _SentRequest(router, uncached_tokens, now_s, UNDECIDED_S)

    def answered(self, request_id: RequestId, accepted: bool, now_s: float) -> None:
        """Record the replica's verdict."""
        sent = self._sent.pop(request_id)
        if accepted:
            self._sent[request_id] = sent._replace(decided_s=now_s)

    def publish(self, read_view: Callable[[], ReplicaView], now_s: float) -> None:
        """Publish the replica's state. read_view: computes it; called only if a router reads the snapshot."""
        self._pending.append(_Published(now_s, read_view))
        self._advance(now_s)

    def load(self, router: int, now_s: float) -> ReplicaLoad:
        """Return the replica's load as a router sees it at `now_s`."""
        self._advance(now_s)
        if self._unread is not None:
            self._visible, self._visible_s = snapshot(self._unread.read_view()), self._unread.now_s
            self._unread = None
        placements_since_s = now_s - self._placement_delay_s
        since = [
            sent.uncached_tokens
            for sent in self._sent.values()
            if sent.router == router or sent.sent_s <= placements_since_s
        ]
        return ReplicaLoad(self._name, self._visible, self._visible_s, len(since), sum(since))

    def _advance(self, now_s: float) -> None:
        newest = None
        while self._pending and self._pending[0].now_s + self._age_s <= now_s:
            newest = self._unread = self._pending.popleft()
        if newest is not None and self._sent:
            self._sent = {
                request_id: sent for request_id, sent in self._sent.items() if sent.decided_s > newest.now_s
            }
