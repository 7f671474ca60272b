"""The state of a replica, as far as a router or picker knows it."""

from enum import StrEnum

from penstock_proto import replica_pb2 as wire

from penstock_routing.discovery.endpoints import Condition


class LinkState(StrEnum):
    """State of the session with a replica, or the reason why it gets no requests."""

    CONNECTING = "connecting"  # no session yet
    READY = "ready"
    ENGINE_DOWN = "engine_down"  # the session is open, but the engine does not serve
    MALFORMED = "malformed"  # its snapshot is invalid
    DRAINING = "draining"  # it finishes its requests
    NOT_READY = "not_ready"  # its session is ready, but its endpoint is not
    TERMINATING = "terminating"  # its session is ready, but its endpoint is terminating
    LOST = "lost"  # the session has ended


NO_SESSION = frozenset({LinkState.CONNECTING, LinkState.LOST})
"""States without a session."""

NOT_LOST = frozenset({LinkState.READY, LinkState.DRAINING, LinkState.TERMINATING})
"""States of a replica that has come back after a loss, or leaves the pool."""

CONDITION_STATES = {
    Condition.NOT_READY: LinkState.NOT_READY,
    Condition.TERMINATING: LinkState.TERMINATING,
}
"""States by the condition of the endpoint, for replicas whose session is ready."""


def reported_state(snapshot: wire.Snapshot) -> LinkState:
    """Return the state that a replica's snapshot shows."""
    if snapshot.draining:
        return LinkState.DRAINING
    return LinkState.READY if snapshot.engine_ready else LinkState.ENGINE_DOWN
