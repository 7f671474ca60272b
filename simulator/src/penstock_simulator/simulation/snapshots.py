"""What a router knows of a replica: what it published a while ago, and what was sent there since.

A replica publishes when an iteration has begun and with its verdicts. Routers see that `age_s` later, so
what has happened since is hidden from them, as it is in production. How it stood when it joined they know
from the start. What they sent themselves they know: it counts until a snapshot that includes its
verdict has come. So does what other routers sent, from when it is heard of.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import RequestId
from penstock_core.forecast.snapshot import snapshot
from penstock_core.routing.replica_load import ReplicaLoad

UNDECIDED_S = float("inf")


class _Sent(NamedTuple):
    router: int
    prompt_tokens: int
    sent_s: float
    decided_s: float


class _Published(NamedTuple):
    now_s: float
    look: Callable[[], ReplicaView]


class Snapshots:
    """One replica's, as they reach the routers. Holds those under way and the last that has arrived."""

    def __init__(self, name: str, first: ReplicaView, age_s: float, heard_s: float) -> None:
        self._name, self._age_s, self._heard_s = name, age_s, heard_s
        self._under_way: deque[_Published] = deque()
        self._arrived: _Published | None = None
        self._seen, self._seen_s = snapshot(first), first.now_s
        self._sent: dict[RequestId, _Sent] = {}

    def sent(self, request_id: RequestId, router: int, prompt_tokens: int, now_s: float) -> None:
        """A router has sent a request there."""
        self._sent[request_id] = _Sent(router, prompt_tokens, now_s, UNDECIDED_S)

    def answered(self, request_id: RequestId, accepted: bool, now_s: float) -> None:
        """The replica has decided about it."""
        sent = self._sent.pop(request_id)
        if accepted:
            self._sent[request_id] = sent._replace(decided_s=now_s)

    def publish(self, look: Callable[[], ReplicaView], now_s: float) -> None:
        """The replica as it is now. look: what it says, worked out only where a router reads it."""
        self._under_way.append(_Published(now_s, look))
        self._arrive(now_s)

    def load(self, router: int, now_s: float) -> ReplicaLoad:
        """What a router knows at a moment."""
        self._arrive(now_s)
        if self._arrived is not None:
            self._seen, self._seen_s = snapshot(self._arrived.look()), self._arrived.now_s
            self._arrived = None
        heard_of_s = now_s - self._heard_s
        since = [
            sent.prompt_tokens
            for sent in self._sent.values()
            if sent.router == router or sent.sent_s <= heard_of_s
        ]
        return ReplicaLoad(self._name, self._seen, now_s - self._seen_s, len(since), sum(since))

    def _arrive(self, now_s: float) -> None:
        came = None
        while self._under_way and self._under_way[0].now_s + self._age_s <= now_s:
            came = self._arrived = self._under_way.popleft()
        if came is not None and self._sent:
            self._sent = {
                request_id: sent for request_id, sent in self._sent.items() if sent.decided_s > came.now_s
            }
