"""Assigns an ingress host that several pools claim to the oldest of them.

The age of a pool does not change, and the result does not depend on which pool is reconciled first.
"""

from collections.abc import Iterable

from penstock_operator.manifests.manifest import Manifest


def host_of(pool: Manifest) -> str | None:
    """Return the host that a pool claims, or None."""
    ingress = pool["spec"].get("ingress")
    return None if ingress is None else ingress.get("host")


def host_owner(host: str, pools: Iterable[Manifest]) -> Manifest:
    """Return the pool that gets the host. At least one must claim it."""
    claimants = [
        pool for pool in pools if host_of(pool) == host and "deletionTimestamp" not in pool["metadata"]
    ]
    return min(claimants, key=lambda pool: (pool["metadata"]["creationTimestamp"], pool["metadata"]["uid"]))


def older_claimant(pool: Manifest, pools: Iterable[Manifest]) -> Manifest | None:
    """Return the older pool that has this pool's host; None if this pool has it, or claims none."""
    host = host_of(pool)
    if host is None:
        return None
    owner = host_owner(host, [pool, *pools])
    return None if owner["metadata"]["uid"] == pool["metadata"]["uid"] else owner
