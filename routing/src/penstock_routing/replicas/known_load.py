"""One replica's load as a router knows it: the last snapshot, and the requests sent since then.

A verdict comes with a snapshot that includes the request, so a router's own request counts as sent until its
verdict or its end. Requests of other routers are known from their messages (`peer_placements`).
"""

from penstock_core.forecast.snapshot import Snapshot
from penstock_core.routing.replica_load import ReplicaLoad

from penstock_routing.replicas.peer_placements import PeerPlacements


class KnownLoad:
    """The load of one replica.

    own: load without requests of other routers. peers: requests that they have just sent.
    unanswered: estimated uncached prompt tokens of own requests without a verdict.
    """

    def __init__(self, name: str) -> None:
        self.own, self.peers = ReplicaLoad(name), PeerPlacements()
        self.unanswered: dict[int, int] = {}

    def with_peers(self, now_s: float) -> ReplicaLoad:
        """Return the load including requests of other routers."""
        own = self.own
        others = self.peers.not_in_snapshot(own.snapshot_s, now_s)
        requests, tokens = own.sent + others.requests, own.sent_tokens + others.prompt_tokens
        return ReplicaLoad(own.name, own.snapshot, own.snapshot_s, requests, tokens)

    def observe(self, snapshot: Snapshot, now_s: float) -> None:
        """Set the snapshot that was received now."""
        own = self.own
        self.own = ReplicaLoad(own.name, snapshot, now_s, own.sent, own.sent_tokens)

    def sent(self, id: int, tokens: int) -> None:
        """Count a request as sent until `answered`."""
        self.unanswered[id] = tokens
        self._add(1, tokens)

    def answered(self, id: int) -> None:
        """Record that the snapshot includes a request, or that it has ended."""
        tokens = self.unanswered.pop(id, None)
        if tokens is not None:
            self._add(-1, -tokens)

    def forget_sent(self) -> None:
        """Forget all sent requests: the session has ended."""
        self._add(-len(self.unanswered), -sum(self.unanswered.values()))
        self.unanswered.clear()

    def _add(self, requests: int, tokens: int) -> None:
        own = self.own
        self.own = ReplicaLoad(
            own.name, own.snapshot, own.snapshot_s, own.sent + requests, own.sent_tokens + tokens
        )
