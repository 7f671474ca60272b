"""The orders in which replicas are tried, by the name in a pool's `routing.order`."""

from collections.abc import Mapping
from types import MappingProxyType

from penstock_core.routing.orders.best_fit import best_fit
from penstock_core.routing.orders.class_affinity import class_affinity
from penstock_core.routing.orders.least_loaded import least_loaded
from penstock_core.routing.orders.lmetric import lmetric
from penstock_core.routing.orders.prefix import prefix
from penstock_core.routing.orders.round_robin import round_robin
from penstock_core.routing.replica_load import Order

BY_PREFIX = "prefix"
"""The order by prefix affinity."""

WITHOUT_CACHES = "round-robin"
"""The order that uses neither snapshots nor the replicas' cached prefixes."""

ORDERS: Mapping[str, Order] = MappingProxyType(
    {
        "round-robin": round_robin,
        "least-loaded": least_loaded,
        "lmetric": lmetric,
        "best-fit": best_fit,
        "class-affinity": class_affinity,
        "prefix": prefix,
    }
)
