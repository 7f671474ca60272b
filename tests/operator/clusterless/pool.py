"""A pool of the tests of the operator: its key, its reference and its manifest."""

from typing import Any

from penstock_operator.cluster.cache import PoolKey
from penstock_operator.cluster.kinds import POOL
from penstock_operator.manifests.manifest import Manifest, Ref

KEY = PoolKey("team", "chat")
REF = Ref(POOL.api_version, POOL.kind, *KEY)


def pool_document(**spec: Any) -> Manifest:
    """Return the pool's manifest; keyword arguments are fields of its spec."""
    return {
        "apiVersion": POOL.api_version,
        "kind": POOL.kind,
        "metadata": {"name": KEY.name, "namespace": KEY.namespace},
        "spec": {
            "model": {"name": "llama"},
            "engine": {"type": "simulated", "timeModel": "llama-3-8b-a100"},
            "tiers": [{"name": "chat", "slo": {"ttft": "1s", "tpot": "100ms"}}],
            "replicas": 2,
        }
        | spec,
    }
