"""Changes the gateway of a running pool in an order in which replicas are always reachable.

Routers reach every replica. Other gateways reach only replicas whose sidecars serve HTTP: with TLS for an
Envoy, without for a Gateway of the cluster. A sidecar opens or closes that port when its pod is replaced. So
every change begins or ends with routers, and replicas are replaced while routers serve:

    router ─▶ replicas serve HTTP ─▶ Envoys replace routers
    envoy  ─▶ routers replace Envoys ─▶ replicas serve no HTTP

Pure, and a function of the observed objects, so a restarted operator continues a change.
"""

from collections.abc import Iterable, Iterator

from penstock_pool.gateway_spec import GatewayName

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import REPLICA_HTTP_PORT
from penstock_operator.objects.envoy_containers import ENVOY
from penstock_operator.objects.picker_container import PICKER
from penstock_operator.objects.render_context import GatewayStage
from penstock_operator.objects.sidecar_container import INSECURE_HTTP


def gateway_stage(desired: GatewayName, observed: Iterable[Manifest]) -> GatewayStage:
    """Return the next stage of the change to the desired gateway. observed: the pool's objects."""
    workloads = {each["kind"]: each for each in observed if each["kind"] in ("StatefulSet", "Deployment")}
    replicas, deployment = workloads.get("StatefulSet"), workloads.get("Deployment")
    if replicas is None or deployment is None:
        return GatewayStage(desired, desired)
    running, serves = _front(deployment), _served_gateway(replicas)
    if running == desired and desired != "router":
        return GatewayStage(desired, desired)
    if running != "router" or not _rolled_out(deployment):
        return GatewayStage("router", serves)
    replicas_ready = serves == desired and _rolled_out(replicas)
    return GatewayStage(desired if replicas_ready else "router", desired)


def _front(deployment: Manifest) -> GatewayName:
    names = {each["name"] for each in _containers(deployment)}
    if ENVOY in names:
        return "envoy"
    return "inferencePool" if PICKER in names else "router"


def _served_gateway(stateful_set: Manifest) -> GatewayName:
    """Return the gateway for which sidecars of the newest template serve HTTP; `router` if they do not."""
    containers = list(_containers(stateful_set))
    ports = {port.get("containerPort") for each in containers for port in each.get("ports") or ()}
    if REPLICA_HTTP_PORT not in ports:
        return "router"
    insecure = any(INSECURE_HTTP in (each.get("args") or ()) for each in containers)
    return "inferencePool" if insecure else "envoy"


def _containers(workload: Manifest) -> Iterator[Manifest]:
    pod = workload["spec"]["template"]["spec"]
    yield from pod.get("initContainers") or ()
    yield from pod["containers"]


def _rolled_out(workload: Manifest) -> bool:
    """Return whether all pods are of the newest template."""
    status = workload.get("status", {})
    current = status.get("observedGeneration", 0) >= workload["metadata"].get("generation", 0)
    return bool(current and status.get("updatedReplicas", 0) >= status.get("replicas", 0))
