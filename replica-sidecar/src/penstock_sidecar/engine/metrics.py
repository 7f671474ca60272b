"""An engine's load by its own `/metrics`, under vLLM's names.

One process may have several engines with separate lines: their requests are added up, and the fullest cache
counts. The load of an engine without these metrics is unknown.
"""

import re
from math import inf
from typing import NamedTuple

from penstock_core.domain.replica_view import KvCache

RUNNING, WAITING = b"vllm:num_requests_running", b"vllm:num_requests_waiting"
KV_USED = b"vllm:kv_cache_usage_perc"

MOST_BYTES = 4 << 20
"""Longest page that is read. Engines have shorter ones."""

_CACHE = re.compile(rb"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(rb'(\w+)="([^"]*)"')
_LINE = re.compile(
    rb"^(" + b"|".join((RUNNING, WAITING, KV_USED)) + rb")(?:\{[^}\n]*\})? ([0-9.eE+-]+)\s*$", re.MULTILINE
)


class EngineLoad(NamedTuple):
    """Running and waiting requests of the engine, and the share of its KV cache in use.

    kv: the empty cache; None if unknown.
    """

    running: int
    waiting: int
    kv_used: float
    kv: KvCache | None = None


def load_of(page: bytes) -> EngineLoad | None:
    """Return the load on a page of metrics; None if it is missing."""
    values: dict[bytes, list[float]] = {}
    for name, value in _LINE.findall(page):
        try:
            values.setdefault(name, []).append(float(value))
        except ValueError:
            return None
    if RUNNING not in values or WAITING not in values:
        return None
    running, waiting = sum(values[RUNNING]), sum(values[WAITING])
    used = max(values.get(KV_USED, [0.0]))
    if not (0.0 <= running < inf and 0.0 <= waiting < inf):
        return None
    return EngineLoad(int(running), int(waiting), min(max(used, 0.0), 1.0), _cache_of(page))


def _cache_of(page: bytes) -> KvCache | None:
    """Return the cache that vLLM reports as labels; None if they are missing."""
    line = _CACHE.search(page)
    labels = dict(_LABEL.findall(line[1])) if line else {}
    blocks, block_tokens = labels.get(b"num_gpu_blocks", b""), labels.get(b"block_size", b"")
    if not (blocks.isdigit() and block_tokens.isdigit() and int(block_tokens)):
        return None
    return KvCache(int(blocks), int(blocks), int(block_tokens))
