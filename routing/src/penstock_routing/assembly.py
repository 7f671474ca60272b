"""Assembly of the parts that depend on the pool: links to replicas, keys, limits, sharing through Redis."""

from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import TYPE_CHECKING

from penstock_pool import Pool, PoolError

from penstock_routing.applications.api_keys import Keys
from penstock_routing.applications.key_refresh import KeyRefresh
from penstock_routing.applications.key_sources import KeyFiles, KeySecrets
from penstock_routing.applications.rate_limits import limits_of
from penstock_routing.connections.api_server import Access
from penstock_routing.connections.backoff import Backoff
from penstock_routing.connections.replica_channel import connect_by
from penstock_routing.discovery.endpoint_watch import EndpointWatch
from penstock_routing.discovery.endpoints import Fixed, Source
from penstock_routing.flags import PoolAccess
from penstock_routing.front_metrics import FrontMetrics
from penstock_routing.replicas.peer_placements import PeerLoad
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.replicas.replica_set import MakeLink, ReplicaSet

if TYPE_CHECKING:  # the Redis client is imported only for pools with a Redis
    from penstock_routing.applications.shared_limits import SharedLimits
    from penstock_routing.replicas.shared_placements import SharedPlacements


def link_maker(options: PoolAccess, random: Random, placements: "SharedPlacements | None") -> MakeLink:
    """Return a function that creates a replica's link."""
    connect = connect_by(options.replica_tls)
    placed = (lambda replica, tokens: None) if placements is None else placements.placed

    def make_link(name: str, address: str, changed: Callable[[], None]) -> ReplicaLink:
        return ReplicaLink(
            name, address, connect, Backoff(random), changed=changed, placed=placed, draw=random.random
        )

    return make_link


def shared_placements(options: PoolAccess, pool: Pool) -> "SharedPlacements | None":
    """Return the placements that this router shares with others; None without a Redis."""
    if options.redis_url is None:
        return None
    from penstock_routing.replicas.shared_placements import SharedPlacements

    channel = f"penstock:{options.service or pool.metadata.name}:placements"
    return SharedPlacements(options.redis_url, channel, Backoff(Random()))


def shared_limits(options: PoolAccess, pool: Pool) -> "SharedLimits | None":
    """Return the limits that this router shares with others; None without limits or without a Redis."""
    limits = limits_of(pool.spec.applications)
    if options.redis_url is None or not limits:
        return None
    from penstock_routing.applications.shared_limits import SharedLimits

    prefix = f"penstock:{options.service or pool.metadata.name}:limits"
    return SharedLimits(options.redis_url, prefix, limits, Backoff(Random()))


def sharing(
    placements: "SharedPlacements | None",
    limits: "SharedLimits | None",
    replica_set: ReplicaSet,
    metrics: FrontMetrics,
) -> Iterator[Coroutine[None, None, None]]:
    """Yield the tasks that share state with other routers through Redis."""
    if placements is not None:

        def on_placement(replica: str, placed: PeerLoad) -> None:
            metrics.placements_received.inc()
            replica_set.placed_by_peer(replica, placed)

        metrics.redis_connected.set_function(lambda: placements.connected)
        yield placements.run(on_placement, metrics.placements_malformed.inc)
    if limits is not None:
        metrics.limits.shared.set_function(lambda: limits.connected)
        yield limits.run()


def refreshing(
    options: PoolAccess, pool: Pool, keys: Keys, metrics: FrontMetrics
) -> Iterator[Coroutine[None, None, None]]:
    """Yield the tasks that refresh applications' keys."""
    secrets, folder = options.key_secrets, options.pool.parent
    files = {
        each.name: folder / each.keys.file
        for each in pool.spec.applications
        if each.keys.file is not None and each.name not in secrets
    }
    if files:
        yield KeyRefresh(keys, KeyFiles(files), metrics.keys).run()
    if secrets:
        yield KeyRefresh(keys, KeySecrets(secrets, Access(options.kubeconfig)), metrics.keys).run()


def check_key_secrets(options: PoolAccess, pool: Pool) -> None:
    """Raise PoolError if a flag names an application that the pool does not have."""
    unknown = options.key_secrets.keys() - {each.name for each in pool.spec.applications}
    if unknown:
        raise PoolError([f"--key-secret: {pool.metadata.name} has no application {min(unknown)}"])


def source(options: PoolAccess) -> Source:
    """Return the source of the replica set. Raises AccessError if the cluster cannot be reached."""
    if options.service is None:
        return Fixed(options.replicas)
    access = Access(options.kubeconfig)
    access.check()
    return EndpointWatch(options.service, access.client, Backoff(Random()))
