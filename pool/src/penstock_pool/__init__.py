"""Schema of the ServingPool, shared by local tools and the cluster."""

from penstock_pool.application_spec import Application
from penstock_pool.durations import parse_duration_s
from penstock_pool.keys import keys_in, load_keys
from penstock_pool.load import PoolError, load_pool, parse_pool
from penstock_pool.serving_pool import Pool
from penstock_pool.tier_spec import TierSpec
from penstock_pool.time_models import named_time_model

__all__ = [
    "Application",
    "Pool",
    "PoolError",
    "TierSpec",
    "keys_in",
    "load_keys",
    "load_pool",
    "named_time_model",
    "parse_duration_s",
    "parse_pool",
]
