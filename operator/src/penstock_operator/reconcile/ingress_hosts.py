"""Which pool has an ingress host that several claim: the oldest.

Age is the only order that no pool can change for itself afterwards. Every pool comes to the same answer on
its own, whichever is looked at first.
"""

from collections.abc import Iterable

from penstock_operator.manifests.manifest import Manifest


def host_of(pool: Manifest) -> str | None:
    """The host that a pool claims."""
    ingress = pool["spec"].get("ingress")
    return None if ingress is None else ingress.get("host")


def holder(host: str, pools: Iterable[Manifest]) -> Manifest:
    """The pool that has the host. At least one has to claim it."""
    claimants = [
        pool for pool in pools if host_of(pool) == host and "deletionTimestamp" not in pool["metadata"]
    ]
    return min(claimants, key=lambda pool: (pool["metadata"]["creationTimestamp"], pool["metadata"]["uid"]))


def taken_by(pool: Manifest, pools: Iterable[Manifest]) -> Manifest | None:
    """The older pool that has this pool's host; None where the host is its own, or it claims none."""
    host = host_of(pool)
    if host is None:
        return None
    has = holder(host, [pool, *pools])
    return None if has["metadata"]["uid"] == pool["metadata"]["uid"] else has
