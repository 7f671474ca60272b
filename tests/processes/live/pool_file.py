"""Pool files for tests: a small simulated pool with changed fields."""

from pathlib import Path
from typing import Any

import yaml

MODEL = "llama3-8b"

TIERS: list[dict[str, Any]] = [
    {"name": "chat", "slo": {"ttft": "20s", "tpot": "500ms"}},
    {"name": "batch", "bestEffort": True},
]
"""So loose that a busy test machine keeps them."""


def write_pool(path: Path, **changes: Any) -> Path:
    """The file with `changes` in place of whole parts of its spec."""
    spec: dict[str, Any] = {
        "model": {"name": MODEL},
        "engine": {"type": "simulated", "timeModel": "llama-3-8b-a100", **changes.pop("engine", {})},
        "replicas": 1,
        "tiers": TIERS,
        "defaultTier": "chat",
        **changes,
    }
    pool = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": "live"},
        "spec": spec,
    }
    path.write_text(yaml.safe_dump(pool, sort_keys=False))
    return path
