"""Which replica is asked, which one next, and what is answered when none will [SLOs-Serve, §4.2].

A request walks. It asks the replicas in an order (see `orders`); one that accepts it ends the walk, one that
rejects it sends it on. After `max_hops` rejections, or when there is nobody left to ask, the backup decides:
serve it without a promise on the replica with the least such work, or answer the client that its SLO cannot
be kept.

Only an answer spends a hop. A replica that is lost before its first byte, that drains, or whose engine is
down has not answered for its capacity: the walk goes on as if it had not been there. But a request that was
lost with its replica may be what ended it, so it is sent to one other replica and no further (`REPLAYS`): a
prompt that kills engines must not walk through the fleet. Every replica is asked at most once on each of the
two occasions, so a walk ends after at most twice as many tries as there are replicas.

`Walk` is a value: `next_move` says what to do, and `refused` or `lost` is the walk after it was done.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, isfinite
from typing import NamedTuple

from penstock_core.domain.verdict import Reason, Rejected
from penstock_core.routing.replica_load import ReplicaLoad

RETRY_UNKNOWN_S = 1
"""Retry-After where no replica could tell when it will have room."""

RETRY_LONGEST_S = 3600
"""Longest Retry-After. A planner looks seconds ahead; beyond an hour it says no more than 'later'."""

REPLAYS = 1
"""Times that a request is sent again after a replica was lost with it."""

OUT_OF_SERVICE = frozenset({Reason.DRAINING, Reason.ENGINE_DOWN})
"""Reasons that speak of the replica, not of its capacity."""


class Backup(StrEnum):
    """What happens to a request that no replica could promise anything."""

    BEST_EFFORT = "best-effort"
    REJECT = "reject"


class Try(NamedTuple):
    """Ask this replica.

    hop: 1 for the first replica that answers; the backup spends none.
    backup: as best effort, for it has been rejected.
    """

    replica: str
    hop: int
    backup: bool = False


class Unattainable(NamedTuple):
    """Answer: there is capacity, and it is taken.

    replicas: how many said so.
    retry_after_s: whole seconds from now; None where a retry is no use.
    """

    replicas: int
    retry_after_s: int | None


class NoReplicas(NamedTuple):
    """Answer: nobody is there to ask."""


class ReplicaLost(NamedTuple):
    """Answer: replicas were lost with this request, and it is sent to no other.

    losses: how many. Past `REPLAYS` the request is suspect, and a client's retry would cost further replicas.
    """

    losses: int


Move = Try | Unattainable | NoReplicas | ReplicaLost


@dataclass(frozen=True, slots=True)
class Walk:
    """How far a request has come.

    left: replicas still to be asked, in order.
    refusals: the rejections so far, one a hop.
    gone: replicas that were lost or out of service when asked.
    backup_refused: the backup's replica said no as well.
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
    """What to do now. loads: the replicas that take work at this moment."""
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


def refused(walk: Walk, tried: Try, why: Rejected) -> Walk:
    """The walk after the replica tried said no."""
    if why.reason in OUT_OF_SERVICE:
        return passed_over(walk, tried)
    if tried.backup:
        return replace(walk, backup_refused=True)
    return replace(walk, left=_without(walk.left, tried.replica), refusals=(*walk.refusals, why))


def passed_over(walk: Walk, tried: Try) -> Walk:
    """Return the walk after the replica tried has not begun the request: it is out of service."""
    return replace(walk, left=_without(walk.left, tried.replica), gone=walk.gone | {tried.replica})


def lost(walk: Walk, tried: Try, affordable: bool = True) -> Walk:
    """Return the walk after the replica tried was lost with the request, before anything went to the client.

    affordable: whether the retry budget has a replay left.
    """
    losses = walk.losses + 1
    return replace(passed_over(walk, tried), losses=losses, over=losses > REPLAYS or not affordable)


def spread_retry_s(retry_after_s: int, draw: float) -> int:
    """Return a Retry-After of up to half of it and a second more, by a draw in [0, 1).

    Clients that were rejected together would come back together, and be rejected again.
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
    told = [r.earliest_s for r in refusals if r.earliest_s is not None and isfinite(r.earliest_s)]
    retry_s = ceil(min(told)) if told else RETRY_UNKNOWN_S
    return Unattainable(len(refusals), min(max(retry_s, 1), RETRY_LONGEST_S))
