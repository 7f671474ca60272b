"""Invalid specs are refused by `kubectl apply`, with the name of the field."""

import json
from typing import Any

from pool_on_cluster.pool import NAMESPACE, document
from pool_on_cluster.world import World

TWO_OF_A_NAME = [{"name": "chat", "slo": {"ttft": "1s", "tpot": "100ms"}}] * 2
BAD: tuple[tuple[dict[str, Any], str], ...] = (
    ({"replicas": -1}, "spec.replicas"),
    ({"tiers": TWO_OF_A_NAME}, "spec.tiers"),
    ({"defaultTier": "nobody"}, "spec.defaultTier"),
    ({"scheduling": {"policy": "guess"}}, "spec.scheduling.policy"),
    ({"tiers": [{"name": "chat", "slo": {"ttft": "1 parsec", "tpot": "100ms"}}]}, "ttft"),
    ({"autoscaling": {"minReplicas": 4, "maxReplicas": 2}}, "spec.autoscaling"),
    ({"replicsa": 3}, 'unknown field "spec.replicsa"'),
)


def bad_specs(world: World) -> None:
    """Invalid specs are refused, each with the name of the field."""
    for change, named in BAD:
        pool = document(world.place.ingress_class, "bad", **change)
        command = ["apply", "--namespace", NAMESPACE, "--validate=strict", "--filename=-"]
        output = world.tools.refused(*command, stdin=json.dumps(pool))
        assert named in output, f"{change} was refused without the name {named}: {output}"
    too_long = document(world.place.ingress_class, "a" * 41)
    output = world.tools.refused(
        "apply", "--namespace", NAMESPACE, "--filename=-", stdin=json.dumps(too_long)
    )
    assert "40" in output, f"a name of 41 characters was refused without saying why: {output}"
