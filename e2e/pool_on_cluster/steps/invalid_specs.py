"""`kubectl apply` rejects invalid specs with the name of the field."""

import json
from typing import Any

from pool_on_cluster.context import ClusterContext
from pool_on_cluster.pool import NAMESPACE, document

DUPLICATE_TIERS = [{"name": "chat", "slo": {"ttft": "1s", "tpot": "100ms"}}] * 2
INVALID_SPECS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"replicas": -1}, "spec.replicas"),
    ({"tiers": DUPLICATE_TIERS}, "spec.tiers"),
    ({"defaultTier": "missing"}, "spec.defaultTier"),
    ({"scheduling": {"policy": "unknown"}}, "spec.scheduling.policy"),
    ({"tiers": [{"name": "chat", "slo": {"ttft": "1 parsec", "tpot": "100ms"}}]}, "ttft"),
    ({"autoscaling": {"minReplicas": 4, "maxReplicas": 2}}, "spec.autoscaling"),
    ({"replicsa": 3}, 'unknown field "spec.replicsa"'),
)


def rejected(context: ClusterContext) -> None:
    """Invalid specs are rejected with the name of the field."""
    for change, field in INVALID_SPECS:
        pool = document(context.cluster.ingress_class, "invalid", **change)
        command = ["apply", "--namespace", NAMESPACE, "--validate=strict", "--filename=-"]
        output = context.tools.expect_error(*command, stdin=json.dumps(pool))
        assert field in output, f"{change} was rejected without the name {field}: {output}"
    too_long = document(context.cluster.ingress_class, "a" * 41)
    output = context.tools.expect_error(
        "apply", "--namespace", NAMESPACE, "--filename=-", stdin=json.dumps(too_long)
    )
    assert "40" in output, f"a name of 41 characters was rejected without the limit: {output}"
