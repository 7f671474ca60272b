"""Changes the gateway of a running pool in the order in which no request is lost.

An Envoy reaches only replicas whose sidecars take HTTP, and a sidecar opens or closes that port when its pod
is replaced. So on the way to Envoys all replicas are replaced first, and on the way back to routers last:

    router ─▶ replicas take HTTP ─▶ Envoys in place of routers
    envoy  ─▶ routers in place of Envoys ─▶ replicas take no HTTP

Pure, and a function of the observed objects, so it continues where an operator has left off.
"""

from collections.abc import Iterable

from penstock_pool.gateway_spec import GatewayName

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import REPLICA_HTTP_PORT
from penstock_operator.objects.envoy_containers import ENVOY
from penstock_operator.objects.render_context import GatewayNow


def gateway_now(wanted: GatewayName, observed: Iterable[Manifest]) -> GatewayNow:
    """Return what is to run now on the way to the wanted gateway. observed: the pool's objects."""
    workloads = {each["kind"]: each for each in observed if each["kind"] in ("StatefulSet", "Deployment")}
    replicas, front = workloads.get("StatefulSet"), workloads.get("Deployment")
    if replicas is None or front is None:
        return GatewayNow(wanted, wanted != "router")
    present = _gateway_of(front)
    if wanted == "router":
        arrived = present == "router" and _rolled_out(front)
        return GatewayNow("router", _takes_http(replicas) and not arrived)
    possible = present != "router" or (_takes_http(replicas) and _rolled_out(replicas))
    return GatewayNow(wanted if possible else present, True)


def _gateway_of(deployment: Manifest) -> GatewayName:
    pod = deployment["spec"]["template"]["spec"]
    return "envoy" if ENVOY in {each["name"] for each in pod.get("initContainers") or ()} else "router"


def _takes_http(stateful_set: Manifest) -> bool:
    pod = stateful_set["spec"]["template"]["spec"]
    ports = (port for each in pod["containers"] for port in each.get("ports") or ())
    return any(port.get("containerPort") == REPLICA_HTTP_PORT for port in ports)


def _rolled_out(workload: Manifest) -> bool:
    """Return whether all pods are of the newest template."""
    status = workload.get("status", {})
    current = status.get("observedGeneration", 0) >= workload["metadata"].get("generation", 0)
    return bool(current and status.get("updatedReplicas", 0) >= status.get("replicas", 0))
