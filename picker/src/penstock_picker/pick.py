"""Picks the replicas to which a gateway sends one request, in order. Pure.

The list has the replicas that a router would try if every replica rejected the request: the first `maxHops`
replicas of the pool's order, then the backup's replica, and a second one in case that cannot be reached. Each
replica decides when the request reaches it, and the gateway tries the next endpoint after a rejection.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock_core.routing.attempts import Attempts, Backup, attempts_if_all_reject
from penstock_core.routing.replica_load import ReplicaLoad, RoutingRequest
from penstock_routing.settings import Settings
from penstock_runtime.gateway_headers import APPLICATION, DESTINATION, MAX_HOPS, MAX_RETRIES
from penstock_runtime.http_request import Header


class Replicas(NamedTuple):
    """The replicas at one moment.

    loads: loads of the replicas that take requests.
    endpoints: `host:port` of their HTTP interface, by name. A gateway cannot reach a replica without one.
    """

    loads: Sequence[ReplicaLoad]
    endpoints: Mapping[str, str]


class Picked(NamedTuple):
    """The answer to a gateway.

    first: name of the first replica.
    max_hops: endpoints after the first that come before those that serve best effort.
    uncached_tokens: estimated prompt tokens that the first replica has to compute.
    application: application that the API key belongs to; empty in a pool without applications.
    answer_headers: headers for the answer to the client, about its application's limits.
    """

    tier: str
    first: str
    endpoints: tuple[str, ...]
    max_hops: int
    uncached_tokens: int = 0
    application: str = ""
    answer_headers: tuple[Header, ...] = ()

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers for the request. They replace those of the same name that the client has sent."""
        return (
            (DESTINATION, ",".join(self.endpoints)),
            ("x-penstock-tier", self.tier),
            (MAX_HOPS, str(self.max_hops)),
            (MAX_RETRIES, str(len(self.endpoints) - 1)),
            *([(APPLICATION, self.application)] if self.application else []),
        )


def pick(
    request: RoutingRequest,
    replicas: Replicas,
    settings: Settings,
    subset: frozenset[str] | None = None,
    best_effort: bool = False,
) -> Picked | None:
    """Return the endpoints to try; None if there is none.

    subset: the only endpoints that the gateway allows; None if it allows all.
    best_effort: whether the request's tier is best effort, so that there is no backup.
    """
    endpoints = replicas.endpoints
    loads = [
        load
        for load in replicas.loads
        if (endpoint := endpoints.get(load.name)) is not None and (subset is None or endpoint in subset)
    ]
    backup = Backup.REJECT if best_effort else settings.backup
    order = settings.order(loads, request)
    tries = attempts_if_all_reject(Attempts(order, settings.max_hops, backup, request=request), loads)
    if not tries:
        return None
    first = tries[0].replica
    chosen = tuple(endpoints[each.replica] for each in tries)
    max_hops = min(sum(not each.backup for each in tries), len(tries) - 1)
    return Picked(request.tier, first, chosen, max_hops, request.uncached_tokens(first))
