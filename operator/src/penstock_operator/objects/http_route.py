"""HTTPRoute of the Gateway API: the pool's host, on a Gateway that is there already.

Only `/v1`, like the Ingress, and without time limits: the router has its own. Where routers serve TLS, the
Gateway needs a BackendTLSPolicy for the pool's Service: which authority it trusts is not the pool's to say.
"""

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import Component
from penstock_operator.objects.ingress import API_PATH
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import RenderContext
from penstock_operator.objects.services import api_port


def http_route(context: RenderContext) -> tuple[Manifest, ...]:
    """The HTTPRoute, where the pool asks for one."""
    wanted = context.pool.spec.ingress
    if wanted is None or wanted.gateway is None:
        return ()
    parent = {"name": wanted.gateway.name}
    if wanted.gateway.namespace is not None:
        parent["namespace"] = wanted.gateway.namespace
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": API_PATH}}],
        "backendRefs": [{"name": context.name, "port": api_port(context).number}],
        "timeouts": {"request": "0s", "backendRequest": "0s"},
    }
    made = child(
        context,
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        context.name,
        component=Component.ROUTER,
        annotations=wanted.annotations,
        spec={"parentRefs": [parent], "hostnames": [wanted.host], "rules": [rule]},
    )
    return (made,)
