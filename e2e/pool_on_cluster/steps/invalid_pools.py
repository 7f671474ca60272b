"""Valid pools that cannot run report why within half a minute, and recover when the cause is removed."""

from collections.abc import Mapping
from typing import Any

from pool_on_cluster.pool import LITTLE, NAMESPACE, document
from pool_on_cluster.waiting import until
from pool_on_cluster.world import World, settled

NAME = "misfit"
WITHIN_S = 30
NO_SUCH_IMAGE = "localhost/penstock/nothing:dev"


def image_missing(world: World) -> None:
    """A pool whose engine image is missing reports it, and recovers once the image is corrected."""
    pool = document(world.place.ingress_class, NAME, replicas=1)
    del pool["spec"]["ingress"]
    pool["spec"]["engine"]["image"] = NO_SUCH_IMAGE
    world.tools.apply(pool, NAMESPACE)
    _says(world, "ImageMissing", NO_SUCH_IMAGE)
    _heals(world, {"engine": {"image": None}})


def gpus_missing(world: World) -> None:
    """A pool that needs more GPUs than there are reports it, and recovers once it needs fewer."""
    world.tools.patch("pool", NAME, NAMESPACE, {"spec": {"engine": {"resources": _gpus("100")}}})
    _says(world, "GpuMissing", "nvidia.com/gpu")
    _heals(world, {"engine": {"resources": _gpus("1")}})
    world.tools.kubectl("delete", "pool", NAME, "--namespace", NAMESPACE, "--timeout=60s")


def _gpus(number: str) -> Mapping[str, Any]:
    return {"requests": LITTLE, "limits": {"memory": "1Gi", "nvidia.com/gpu": number}}


def _says(world: World, reason: str, named: str) -> None:
    """Check that the condition has the reason and names the object, and that an Event reports the same."""

    def said() -> bool:
        degraded = _condition(world, "Degraded")
        return degraded.get("reason") == reason and named in degraded["message"]

    until(said, f"Degraded for {reason}, naming {named}", patience_s=WITHIN_S)
    events = [
        "events",
        "--namespace",
        NAMESPACE,
        f"--field-selector=involvedObject.name={NAME},reason={reason}",
    ]
    until(lambda: world.tools.exists(*events), f"an Event {reason}", patience_s=WITHIN_S)


def _heals(world: World, spec: Mapping[str, Any]) -> None:
    world.tools.patch("pool", NAME, NAMESPACE, {"spec": spec})
    until(lambda: settled(_pool(world), 1), f"pool {NAME} healed")


def _condition(world: World, kind: str) -> Mapping[str, Any]:
    conditions = _pool(world).get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _pool(world: World) -> Any:
    return world.tools.get("pool", NAME, "--namespace", NAMESPACE)
