"""Selects the next replica for a request, and the answer if all reject [SLOs-Serve, §4.2].

A request is tried at the replicas in an order (see `orders`) until one accepts it. After `max_hops`
rejections, or if no replica is left, the backup decides: serve it best effort, or answer that its SLO cannot
be met. Best effort goes to the replica where the least has to be computed before it is done: the uncached
tokens of its prompt, times the number of best-effort requests there including this one. So a session that was
rejected once continues where its prefix is cached, and does not evict other prefixes from a second cache.
Equal replicas take turns, so that a burst is spread although no snapshot has arrived meanwhile.

Only rejections count as hops. A replica that is lost before its first byte, that drains, or whose engine is
down has not decided about its capacity and is skipped. But a request may be the cause of the loss of its
replica, so it is sent to one other replica at most (`REPLAYS`): a prompt that crashes engines must not reach
the whole fleet. Each replica is tried at most once in the order and once as backup, so the number of attempts
is at most twice the number of replicas.

`Attempts` is a value: `next_action` returns the next action, `after_rejection`, `after_skip` or `after_loss`
the state after it, and `with_joined` adds replicas that have come into service meanwhile.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import islice
from math import ceil, isfinite
from typing import NamedTuple

from penstock_core.domain.verdict import Reason, Rejected
from penstock_core.routing.orders.turns import in_turn
from penstock_core.routing.replica_load import ReplicaLoad, RoutingRequest

RETRY_UNKNOWN_S = 1
"""Retry-After in seconds if no replica could estimate when it will have capacity."""

RETRY_LONGEST_S = 3600
"""Longest Retry-After in seconds. Planners forecast seconds, so a longer time would have no meaning."""

REPLAYS = 1
"""Times that a request is sent again after the loss of its replica."""

BACKUPS = 2
"""Number of backups in a list of attempts: the first one may have been lost since its last snapshot."""

OUT_OF_SERVICE = frozenset({Reason.DRAINING, Reason.ENGINE_DOWN})
"""Reasons that concern the replica's state, not its capacity."""

UNKNOWN_REQUEST = RoutingRequest(tier="", body_bytes=0, number=0)
"""A request without any known property."""


class Backup(StrEnum):
    """Treatment of a request that all replicas rejected."""

    BEST_EFFORT = "best-effort"
    REJECT = "reject"


class Try(NamedTuple):
    """Send the request to this replica.

    hop: 1 for the first replica that answers; the backup does not count.
    backup: whether to send it as best effort, because all replicas rejected it.
    """

    replica: str
    hop: int
    backup: bool = False


class Unattainable(NamedTuple):
    """Answer: the SLO cannot be met, because capacity is in use.

    replicas: number of replicas that rejected the request.
    retry_after_s: whole seconds from now; None if a retry is useless.
    """

    replicas: int
    retry_after_s: int | None


class NoReplicas(NamedTuple):
    """Answer: no replica is in service."""


class ReplicaLost(NamedTuple):
    """Answer: replicas were lost with this request, and it is sent to no other.

    losses: number of lost replicas. Beyond `REPLAYS` the request may be the cause, and a client's retry could
        crash further replicas.
    replica: the last one that was lost.
    """

    losses: int
    replica: str


NextAction = Try | Unattainable | NoReplicas | ReplicaLost


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts of a request so far.

    left: replicas still to try, in order.
    rejections: so far, one per hop.
    gone: replicas that were lost or out of service when tried.
    backup_rejected: whether the backup's replica has rejected it too.
    losses: replicas that were lost with the request. lost: the last of them; "" if none. over: whether it may
        not be sent again.
    request: its known properties, for the choice of the backup's replica.
    """

    left: tuple[str, ...]
    max_hops: int
    backup: Backup
    rejections: tuple[Rejected, ...] = ()
    gone: frozenset[str] = frozenset()
    backup_rejected: bool = False
    losses: int = 0
    lost: str = ""
    over: bool = False
    request: RoutingRequest = UNKNOWN_REQUEST


def next_action(attempts: Attempts, loads: Sequence[ReplicaLoad]) -> NextAction:
    """Return the next action. loads: the replicas that take requests now."""
    if attempts.over:
        return ReplicaLost(attempts.losses, attempts.lost)
    there = {load.name for load in loads}
    candidate = next((name for name in attempts.left if name in there), None)
    hops = len(attempts.rejections)
    if candidate is not None and hops < attempts.max_hops:
        return Try(candidate, hops + 1)
    if hops == 0:
        return NoReplicas()
    spare = _backup_replica(attempts, loads)
    return _unattainable(attempts.rejections) if spare is None else Try(spare, hops, backup=True)


def attempts_if_all_reject(attempts: Attempts, loads: Sequence[ReplicaLoad]) -> tuple[Try, ...]:
    """Return all attempts of a new request if every replica rejects it because it has no capacity.

    A gateway gets all of them at once, and proceeds to the next one when a replica rejects. They are those of
    `next_action` after rejections, and a second backup for a first one that is out of service or lost.
    """
    there = {load.name for load in loads}
    order = tuple(islice((name for name in attempts.left if name in there), attempts.max_hops))
    tries = tuple(Try(name, hop) for hop, name in enumerate(order, 1))
    for _ in range(BACKUPS if tries else 0):
        spare = _backup_replica(attempts, loads)
        if spare is None:
            break
        tries += (Try(spare, len(order), backup=True),)
        attempts = after_skip(attempts, tries[-1])
    return tries


def after_rejection(attempts: Attempts, tried: Try, why: Rejected) -> Attempts:
    """Return the attempts after the replica rejected the request."""
    if why.reason in OUT_OF_SERVICE:
        return after_skip(attempts, tried)
    if tried.backup:
        return replace(attempts, backup_rejected=True)
    return replace(
        attempts, left=_without(attempts.left, tried.replica), rejections=(*attempts.rejections, why)
    )


def after_skip(attempts: Attempts, tried: Try) -> Attempts:
    """Return the attempts after a replica that is out of service and has not begun the request."""
    return replace(
        attempts, left=_without(attempts.left, tried.replica), gone=attempts.gone | {tried.replica}
    )


def after_loss(attempts: Attempts, tried: Try, affordable: bool = True) -> Attempts:
    """Return the attempts after the replica was lost with the request, before a byte was sent to the client.

    affordable: whether the retry budget allows a replay.
    """
    losses = attempts.losses + 1
    over = losses > REPLAYS or not affordable
    return replace(after_skip(attempts, tried), losses=losses, lost=tried.replica, over=over)


def with_joined(attempts: Attempts, before: Sequence[ReplicaLoad], now: Sequence[ReplicaLoad]) -> Attempts:
    """Return the attempts with the replicas that take requests now and did not before: they are tried last.

    A request may wait at a replica for minutes before that is lost.
    """
    known = {*attempts.left, *attempts.gone, *(load.name for load in before)}
    joined = tuple(load.name for load in now if load.name not in known)
    return replace(attempts, left=(*attempts.left, *joined)) if joined else attempts


def retry_after_s(rejections: Iterable[Rejected]) -> int:
    """Return whole seconds until the first of the replicas that rejected a request could admit it."""
    earliest_s = [r.earliest_s for r in rejections if r.earliest_s is not None and isfinite(r.earliest_s)]
    retry_s = ceil(min(earliest_s)) if earliest_s else RETRY_UNKNOWN_S
    return min(max(retry_s, 1), RETRY_LONGEST_S)


def spread_retry_s(retry_after_s: int, draw: float) -> int:
    """Return a Retry-After that is longer by up to half and a second, by a draw in [0, 1).

    Otherwise clients that were rejected together would return together, and be rejected again.
    """
    return min(retry_after_s + int(draw * (retry_after_s / 2 + 1)), RETRY_LONGEST_S)


def _without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(other for other in names if other != name)


def _backup_replica(attempts: Attempts, loads: Sequence[ReplicaLoad]) -> str | None:
    if attempts.backup is not Backup.BEST_EFFORT or attempts.backup_rejected:
        return None
    request = attempts.request
    left = [load for load in in_turn(loads, request) if load.name not in attempts.gone]
    return min(left, key=partial(_best_effort_work, request)).name if left else None


def _best_effort_work(request: RoutingRequest, load: ReplicaLoad) -> int:
    """Return the prompt tokens to compute at a replica, times the requests that share its spare capacity."""
    return request.uncached_tokens(load.name) * (load.snapshot.best_effort + 1)


def _unattainable(rejections: tuple[Rejected, ...]) -> Unattainable:
    if all(rejection.reason is Reason.NEVER for rejection in rejections):
        return Unattainable(len(rejections), None)
    return Unattainable(len(rejections), retry_after_s(rejections))
