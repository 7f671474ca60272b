"""Ingress: the pool's host, for clients outside the cluster.

Only `/v1` is led in: metrics and what routers say of themselves stay inside. Answers are streams that last
for minutes, and a proxy that buffers them or cuts them off after sixty seconds breaks them. Of the usual
controllers only nginx does either, so it is told not to by its annotations, which others do not read; the
pool's own annotations win. Traefik and HAProxy pass streams on as they come.
"""

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import Component
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import Inputs
from penstock_operator.objects.services import api_port

API_PATH = "/v1"
LONGEST_ANSWER_S = 3600

_NGINX = "nginx.ingress.kubernetes.io"


def ingress(inputs: Inputs) -> tuple[Manifest, ...]:
    """The Ingress, where the pool asks for one."""
    wanted = inputs.pool.spec.ingress
    if wanted is None or wanted.kind != "Ingress":
        return ()
    backend = {"service": {"name": inputs.name, "port": {"name": api_port(inputs).name}}}
    path = {"path": API_PATH, "pathType": "Prefix", "backend": backend}
    spec: Manifest = {"rules": [{"host": wanted.host, "http": {"paths": [path]}}]}
    if wanted.class_name is not None:
        spec["ingressClassName"] = wanted.class_name
    if wanted.tls_secret is not None:
        spec["tls"] = [{"hosts": [wanted.host], "secretName": wanted.tls_secret}]
    annotations = {**_for_nginx(inputs), **wanted.annotations}
    made = child(
        inputs,
        "networking.k8s.io/v1",
        "Ingress",
        inputs.name,
        component=Component.ROUTER,
        annotations=annotations,
        spec=spec,
    )
    return (made,)


def _for_nginx(inputs: Inputs) -> dict[str, str]:
    protocol = {f"{_NGINX}/backend-protocol": "HTTPS"} if api_port(inputs).name == "https" else {}
    return {
        **protocol,
        f"{_NGINX}/proxy-buffering": "off",
        f"{_NGINX}/proxy-read-timeout": str(LONGEST_ANSWER_S),
        f"{_NGINX}/proxy-send-timeout": str(LONGEST_ANSWER_S),
        f"{_NGINX}/proxy-body-size": str(inputs.pool.spec.router.max_body_bytes),
    }
