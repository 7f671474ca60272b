"""One replica's load as a router knows it: the last snapshot, and what has been sent since.

The router knows its own requests exactly: a verdict comes with the snapshot that includes the request, so a
request counts as sent until its verdict or its end. What other routers have sent is known from their messages
(`peer_placements`).
"""

from penstock_core.forecast.snapshot import Snapshot
from penstock_core.routing.replica_load import ReplicaLoad

from penstock_routing.replicas.peer_placements import PeerPlacements


class KnownLoad:
    """The load of one replica.

    own: without what other routers have sent. peers: what they have just sent.
    unanswered: uncached prompt tokens, about, of own requests without a verdict.
    """

    def __init__(self, name: str) -> None:
        self.own, self.peers = ReplicaLoad(name), PeerPlacements()
        self.unanswered: dict[int, int] = {}

    def with_peers(self, now_s: float) -> ReplicaLoad:
        """Return the load with what other routers have sent."""
        own = self.own
        others = self.peers.not_in_snapshot(own.snapshot_s, now_s)
        requests, tokens = own.sent + others.requests, own.sent_tokens + others.prompt_tokens
        return ReplicaLoad(own.name, own.snapshot, own.snapshot_s, requests, tokens)

    def observe(self, snapshot: Snapshot, now_s: float) -> None:
        """Take the snapshot that has just come."""
        own = self.own
        self.own = ReplicaLoad(own.name, snapshot, now_s, own.sent, own.sent_tokens)

    def sent(self, id: int, tokens: int) -> None:
        """Count a request until it is answered."""
        self.unanswered[id] = tokens
        self._add(1, tokens)

    def answered(self, id: int) -> None:
        """Note that the snapshot includes a request, or that it has ended."""
        tokens = self.unanswered.pop(id, None)
        if tokens is not None:
            self._add(-1, -tokens)

    def forget_sent(self) -> None:
        """Count no request any more: the session is over."""
        self._add(-len(self.unanswered), -sum(self.unanswered.values()))
        self.unanswered.clear()

    def _add(self, requests: int, tokens: int) -> None:
        own = self.own
        self.own = ReplicaLoad(
            own.name, own.snapshot, own.snapshot_s, own.sent + requests, own.sent_tokens + tokens
        )
