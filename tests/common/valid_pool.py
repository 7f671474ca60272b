"""A valid pool, and copies of it with one field changed."""

import copy
from typing import Any

VALID_POOL: dict[str, Any] = {
    "apiVersion": "penstock.dev/v1alpha1",
    "kind": "ServingPool",
    "metadata": {"name": "demo"},
    "spec": {
        "model": {"name": "m"},
        "engine": {"type": "simulated", "timeModel": "llama-3-8b-a100"},
        "replicas": 2,
        "tiers": [
            {"name": "chat", "slo": {"ttft": {"slowdown": 5}, "tpot": "100ms"}},
            {"name": "coder", "slo": {"ttft": "800ms", "tpot": "50ms"}},
            {"name": "batch", "bestEffort": True},
        ],
        "defaultTier": "chat",
        "applications": [
            {"name": "ide", "tier": "coder", "allow": ["batch"], "keys": {"secret": "ide-keys"}},
        ],
    },
}

REMOVED = object()


def with_change(path: str, value: object, pool: dict[str, Any] = VALID_POOL) -> dict[str, Any]:
    """Return the pool with one field changed, added or REMOVED. path: its steps, as in `spec/tiers/0/slo`."""
    document = copy.deepcopy(pool)
    *steps, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    place: Any = document
    for step in steps:
        place = place[step] if isinstance(step, int) else place.setdefault(step, {})
    if value is REMOVED:
        del place[last]
    elif isinstance(last, int) and last == len(place):
        place.append(value)
    else:
        place[last] = value
    return document
