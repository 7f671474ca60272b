"""Metrics of streams that lost their replica."""

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram

SILENCE_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)
"""Buckets of the time without tokens during a move."""


class MoveCause(StrEnum):
    """Why a stream is moved to another replica: values of the label `cause`."""

    REPLICA_LOST = "replica_lost"  # its sidecar, its machine, or the network
    ENGINE_LOST = "engine_lost"
    DRAINED = "drained"  # its drain reached the deadline


class MoveOutcome(StrEnum):
    """How an attempt to move a stream ended: values of the label `outcome`."""

    MOVED = "moved"
    FIXED = "fixed"  # the stream cannot be continued faithfully
    REFUSED = "refused"  # no other replica accepted it
    LOST = "lost"  # the next replica was lost before its first token
    SPENT = "spent"  # the stream was already moved as often as the pool allows


class MoveMetrics:
    """The metrics of one router. All series of `moves` begin at 0, so that a rate includes the first move."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.moves = Counter(
            "penstock_router_moves",
            "Streams that lost their replica, by cause and outcome.",
            ["cause", "outcome"],
            registry=registry,
        )
        for cause in MoveCause:
            for outcome in MoveOutcome:
                self.moves.labels(cause.value, outcome.value)
        self.silence = Histogram(
            "penstock_router_move_silence_seconds",
            "From the last token before a move to the first after it, as the client sees it.",
            buckets=SILENCE_BUCKETS_S,
            registry=registry,
        )
