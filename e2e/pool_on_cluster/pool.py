"""The pool under test: three replicas with simulated engines, each with one simulated GPU."""

from typing import Any

NAMESPACE, NAME, MODEL = "e2e", "chat", "meta-llama/Llama-3.1-8B-Instruct"
HOST = "localhost"
REPLICAS = 3

SMALL_REQUESTS = {"cpu": "10m", "memory": "128Mi"}
"""Resource requests of containers, small because the whole cluster shares two cores."""


def document(ingress_class: str, name: str = NAME, **spec: Any) -> dict[str, Any]:
    """Return the pool as a document. spec: fields that replace the default ones."""
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": name},
        "spec": {**_spec(ingress_class), **spec},
    }


def _spec(ingress_class: str) -> dict[str, Any]:
    return {
        "model": {"name": MODEL},
        "engine": {
            "type": "simulated",
            "timeModel": "llama-3-8b-a100",
            "resources": {"requests": SMALL_REQUESTS, "limits": {"memory": "1Gi", "nvidia.com/gpu": "1"}},
        },
        "replicas": REPLICAS,
        "tiers": [
            {"name": "chat", "slo": {"ttft": "2s", "tpot": "200ms"}},
            {"name": "batch", "bestEffort": True},
        ],
        "defaultTier": "chat",
        "routing": {"order": "round-robin", "maxHops": 3, "backup": "best-effort"},
        "router": {"replicas": 2, "resources": {"requests": SMALL_REQUESTS, "limits": {"memory": "512Mi"}}},
        "ingress": {"host": HOST, "className": ingress_class},
    }
