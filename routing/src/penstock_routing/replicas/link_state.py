"""Whether a replica takes work, as far as a router or picker knows."""

from enum import StrEnum

from penstock_proto import replica_pb2 as wire

from penstock_routing.discovery.endpoints import Condition


class LinkState(StrEnum):
    """State of the session with a replica, or what keeps requests away from it."""

    CONNECTING = "connecting"  # no session yet
    READY = "ready"
    ENGINE_DOWN = "engine_down"  # there is a session, and no engine behind it
    MALFORMED = "malformed"  # its snapshot is invalid
    DRAINING = "draining"  # it finishes what it has
    NOT_READY = "not_ready"  # it would take work, and its endpoint is not ready
    TERMINATING = "terminating"  # it would take work, and its endpoint is terminating
    LOST = "lost"  # there was a session


CONDITION_STATES = {
    Condition.NOT_READY: LinkState.NOT_READY,
    Condition.TERMINATING: LinkState.TERMINATING,
}
"""States of replicas that would take work and get none."""


def reported_state(snapshot: wire.Snapshot) -> LinkState:
    """Return the state that a replica's snapshot shows."""
    if snapshot.draining:
        return LinkState.DRAINING
    return LinkState.READY if snapshot.engine_ready else LinkState.ENGINE_DOWN
