"""InferencePool of the Gateway API Inference Extension, and the Service by which a Gateway finds the pickers.

A Gateway's controller reads the pool's pods and ports from it, and queries the picker for each request.
"""

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import (
    PICKER_PORT,
    REPLICA_HTTP_PORT,
    Component,
    picker_service_name,
    selector,
)
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import RenderContext

GROUP = "inference.networking.k8s.io"
KIND = "InferencePool"


def inference_pool(context: RenderContext) -> tuple[Manifest, ...]:
    """Return the InferencePool, if it is the pool's gateway.

    Requests pass while no picker answers, unless it must check API keys.
    """
    if context.gateway.front != "inferencePool":
        return ()
    spec = {
        "selector": {"matchLabels": selector(context.name, Component.REPLICA)},
        "targetPorts": [{"number": REPLICA_HTTP_PORT}],
        "endpointPickerRef": {
            "kind": "Service",
            "name": picker_service_name(context.name),
            "port": {"number": PICKER_PORT},
            "failureMode": "FailClose" if context.pool.spec.applications else "FailOpen",
        },
    }
    return (child(context, f"{GROUP}/v1", KIND, context.name, component=Component.ROUTER, spec=spec),)


def picker_service(context: RenderContext) -> tuple[Manifest, ...]:
    """Return the Service of the pickers, if Gateways query them."""
    if context.gateway.front != "inferencePool":
        return ()
    port = {"name": "ext-proc", "port": PICKER_PORT, "targetPort": PICKER_PORT, "appProtocol": "http2"}
    spec = {
        "type": "ClusterIP",
        "selector": selector(context.name, Component.ROUTER),
        "ports": [port],
    }
    name = picker_service_name(context.name)
    return (child(context, "v1", "Service", name, component=Component.ROUTER, spec=spec),)
