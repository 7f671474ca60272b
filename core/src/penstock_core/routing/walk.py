"""Selects the next replica to ask, and the answer if all reject [SLOs-Serve, §4.2].

A request visits the replicas in an order (see `orders`) until one accepts it. After `max_hops` rejections, or
if no replica is left, the backup decides: serve it best effort on the replica with the least best-effort
work, or tell the client that its SLO cannot be met.

Only rejections count as hops. A replica that is lost before its first byte, that drains, or whose engine is
down has not answered about its capacity and is skipped. But a request may be the cause of the loss of its
replica, so it is sent to one other replica at most (`REPLAYS`): a prompt that crashes engines must not visit
the whole fleet. Each replica is asked at most once in the order and once as backup, so a walk ends after at
most twice as many tries as there are replicas.

`Walk` is a value: `next_move` returns the next action, and `refused` or `lost` the walk after it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, isfinite
from typing import NamedTuple

from penstock_core.domain.verdict import Reason, Rejected
from penstock_core.routing.replica_load import ReplicaLoad

RETRY_UNKNOWN_S = 1
"""Retry-After in seconds if no replica could estimate when it will have capacity."""

RETRY_LONGEST_S = 3600
"""Longest Retry-After in seconds. Planners forecast seconds; an hour only means "later"."""

REPLAYS = 1
"""Times that a request is sent again after the loss of its replica."""

OUT_OF_SERVICE = frozenset({Reason.DRAINING, Reason.ENGINE_DOWN})
"""Reasons that concern the replica's state, not its capacity."""

NO_CAPACITY = Rejected(Reason.QUEUE_FULL, None)
"""A rejection after which the request goes to the next replica."""


class Backup(StrEnum):
    """What happens to a request that all replicas rejected."""

    BEST_EFFORT = "best-effort"
    REJECT = "reject"


class Try(NamedTuple):
    """Ask this replica.

    hop: 1 for the first replica that answers; the backup does not count.
    backup: as best effort, because it was rejected.
    """

    replica: str
    hop: int
    backup: bool = False


class Unattainable(NamedTuple):
    """Answer: the SLO cannot be met, because capacity is in use.

    replicas: how many rejected the request.
    retry_after_s: whole seconds from now; None if a retry is useless.
    """

    replicas: int
    retry_after_s: int | None


class NoReplicas(NamedTuple):
    """Answer: there is no replica to ask."""


class ReplicaLost(NamedTuple):
    """Answer: replicas were lost with this request, and it is sent to no other.

    losses: how many. Beyond `REPLAYS` the request is suspect, and a client's retry would cost further
        replicas.
    """

    losses: int


Move = Try | Unattainable | NoReplicas | ReplicaLost


@dataclass(frozen=True, slots=True)
class Walk:
    """Progress of a request through the replicas.

    left: replicas still to ask, in order.
    refusals: rejections so far, one per hop.
    gone: replicas that were lost or out of service when asked.
    backup_refused: the backup's replica has rejected it too.
    losses: replicas that were lost with the request. over: it may not be sent again.
    """

    left: tuple[str, ...]
    max_hops: int
    backup: Backup
    refusals: tuple[Rejected, ...] = ()
    gone: frozenset[str] = frozenset()
    backup_refused: bool = False
    losses: int = 0
    over: bool = False


def next_move(walk: Walk, loads: Sequence[ReplicaLoad]) -> Move:
    """Return the next action. loads: the replicas that take requests now."""
    if walk.over:
        return ReplicaLost(walk.losses)
    there = {load.name for load in loads}
    to_ask = next((name for name in walk.left if name in there), None)
    hops = len(walk.refusals)
    if to_ask is not None and hops < walk.max_hops:
        return Try(to_ask, hops + 1)
    if hops == 0:
        return NoReplicas()
    spare = _backup_replica(walk, loads)
    return _unattainable(walk.refusals) if spare is None else Try(spare, hops, backup=True)


def longest_walk(walk: Walk, loads: Sequence[ReplicaLoad]) -> tuple[Try, ...]:
    """Return the tries that follow if every replica rejects the request because it has no capacity.

    A gateway gets all of them at once, and makes the next one when a replica has rejected.
    """
    tries: list[Try] = []
    while isinstance(move := next_move(walk, loads), Try):
        tries.append(move)
        walk = refused(walk, move, NO_CAPACITY)
    return tuple(tries)


def refused(walk: Walk, tried: Try, why: Rejected) -> Walk:
    """Return the walk after the replica rejected the request."""
    if why.reason in OUT_OF_SERVICE:
        return passed_over(walk, tried)
    if tried.backup:
        return replace(walk, backup_refused=True)
    return replace(walk, left=_without(walk.left, tried.replica), refusals=(*walk.refusals, why))


def passed_over(walk: Walk, tried: Try) -> Walk:
    """Return the walk after a replica that is out of service and has not begun the request."""
    return replace(walk, left=_without(walk.left, tried.replica), gone=walk.gone | {tried.replica})


def lost(walk: Walk, tried: Try, affordable: bool = True) -> Walk:
    """Return the walk after the replica was lost with the request, before a byte was sent to the client.

    affordable: whether the retry budget allows a replay.
    """
    losses = walk.losses + 1
    return replace(passed_over(walk, tried), losses=losses, over=losses > REPLAYS or not affordable)


def retry_after_s(refusals: Iterable[Rejected]) -> int:
    """Return whole seconds until the first of the replicas that rejected a request could admit it."""
    earliest_s = [r.earliest_s for r in refusals if r.earliest_s is not None and isfinite(r.earliest_s)]
    retry_s = ceil(min(earliest_s)) if earliest_s else RETRY_UNKNOWN_S
    return min(max(retry_s, 1), RETRY_LONGEST_S)


def spread_retry_s(retry_after_s: int, draw: float) -> int:
    """Return a Retry-After that is longer by up to half and a second, by a draw in [0, 1).

    Otherwise clients that were rejected together would return together, and be rejected again.
    """
    return min(retry_after_s + int(draw * (retry_after_s / 2 + 1)), RETRY_LONGEST_S)


def _without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(other for other in names if other != name)


def _backup_replica(walk: Walk, loads: Sequence[ReplicaLoad]) -> str | None:
    if walk.backup is not Backup.BEST_EFFORT or walk.backup_refused:
        return None
    candidates = [load for load in loads if load.name not in walk.gone]
    least = min(candidates, key=lambda load: (load.snapshot.best_effort, load.name), default=None)
    return None if least is None else least.name


def _unattainable(refusals: tuple[Rejected, ...]) -> Unattainable:
    if all(refusal.reason is Reason.NEVER for refusal in refusals):
        return Unattainable(len(refusals), None)
    return Unattainable(len(refusals), retry_after_s(refusals))
