"""The facts about an engine that planning needs before the first request: its time model and KV cache.

Built-in time models have a default size of the KV cache.
"""

from typing import NamedTuple

from penstock_core.domain.replica_view import KvCache
from penstock_core.timing.builtin_models import kv_cache_tokens, time_model
from penstock_core.timing.time_model import TimeModel
from penstock_pool import Pool


class Facts(NamedTuple):
    """The facts about an engine.

    kv: the empty cache. overhead_s: time of a request outside of iterations, while it is idle; 0 if unknown.
    """

    model: TimeModel
    kv: KvCache
    overhead_s: float = 0.0


def builtin_facts(pool: Pool) -> Facts:
    """Return the facts of the built-in model that the pool names."""
    spec = pool.spec.engine
    model = time_model(spec.time_model)
    return Facts(model, kv_cache(spec.kv_cache_tokens or kv_cache_tokens(model.name), spec.block_tokens))


def kv_cache(tokens: int, block_tokens: int) -> KvCache:
    """Return an empty cache of this size."""
    blocks = tokens // block_tokens
    return KvCache(blocks, blocks, block_tokens)
