"""Ingress: the pool's host for clients outside the cluster.

Only `/v1` is exposed; metrics and the routers' reports stay inside. Responses are streams of minutes, which a
proxy that buffers them or cuts them off after sixty seconds would break. Of the usual controllers only nginx
does this by default, so its annotations disable it; other controllers ignore them. The pool's own annotations
take precedence. Traefik and HAProxy forward streams unbuffered.
"""

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import Component
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import RenderContext
from penstock_operator.objects.services import api_port

API_PATH = "/v1"
ANSWER_TIMEOUT_S = 3600
"""Timeout of the ingress controller for an answer, in its annotations."""

_NGINX = "nginx.ingress.kubernetes.io"


def ingress(context: RenderContext) -> tuple[Manifest, ...]:
    """Return the Ingress, if the pool asks for one."""
    exposure = context.pool.spec.ingress
    if exposure is None or exposure.kind != "Ingress":
        return ()
    backend = {"service": {"name": context.name, "port": {"name": api_port(context).name}}}
    path = {"path": API_PATH, "pathType": "Prefix", "backend": backend}
    spec: Manifest = {"rules": [{"host": exposure.host, "http": {"paths": [path]}}]}
    if exposure.class_name is not None:
        spec["ingressClassName"] = exposure.class_name
    if exposure.tls_secret is not None:
        spec["tls"] = [{"hosts": [exposure.host], "secretName": exposure.tls_secret}]
    annotations = {**_for_nginx(context), **exposure.annotations}
    made = child(
        context,
        "networking.k8s.io/v1",
        "Ingress",
        context.name,
        component=Component.ROUTER,
        annotations=annotations,
        spec=spec,
    )
    return (made,)


def _for_nginx(context: RenderContext) -> dict[str, str]:
    protocol = {f"{_NGINX}/backend-protocol": "HTTPS"} if api_port(context).name == "https" else {}
    return {
        **protocol,
        f"{_NGINX}/proxy-buffering": "off",
        f"{_NGINX}/proxy-read-timeout": str(ANSWER_TIMEOUT_S),
        f"{_NGINX}/proxy-send-timeout": str(ANSWER_TIMEOUT_S),
        f"{_NGINX}/proxy-body-size": str(context.pool.spec.router.max_body_bytes),
    }
