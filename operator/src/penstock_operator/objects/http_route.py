"""HTTPRoute of the Gateway API: the pool's host on an existing Gateway.

It routes only `/v1`, like the Ingress, and turns the Gateway's timeouts off, because the router has its own.
If routers serve TLS, the Gateway needs a BackendTLSPolicy for the pool's Service, which the administrator of
the Gateway writes, because it says which authority the Gateway trusts. The backend is the pool's Service, or
its InferencePool.
"""

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import Component
from penstock_operator.objects.inference_pool import GROUP, KIND
from penstock_operator.objects.ingress import API_PATH
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import RenderContext
from penstock_operator.objects.services import api_port


def http_route(context: RenderContext) -> tuple[Manifest, ...]:
    """Return the HTTPRoute, if the pool asks for one."""
    exposure = context.pool.spec.ingress
    if exposure is None or exposure.gateway is None:
        return ()
    parent = {"name": exposure.gateway.name}
    if exposure.gateway.namespace is not None:
        parent["namespace"] = exposure.gateway.namespace
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": API_PATH}}],
        "backendRefs": [_backend(context)],
        "timeouts": {"request": "0s", "backendRequest": "0s"},
    }
    made = child(
        context,
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        context.name,
        component=Component.ROUTER,
        annotations=exposure.annotations,
        spec={"parentRefs": [parent], "hostnames": [exposure.host], "rules": [rule]},
    )
    return (made,)


def _backend(context: RenderContext) -> Manifest:
    if context.gateway.front == "inferencePool":
        return {"group": GROUP, "kind": KIND, "name": context.name}
    return {"name": context.name, "port": api_port(context).number}
