"""The container of a router, which serves clients' requests."""

from typing import Any

from penstock_operator.manifests.names import ROUTER_PORT, engine_server_name
from penstock_operator.objects.containers import ENGINE_KEY, engine_key
from penstock_operator.objects.front_container import (
    CERTIFICATE_FOLDER,
    CERTIFICATE_MOUNT,
    front_container,
)
from penstock_operator.objects.render_context import RenderContext
from penstock_operator.objects.services import api_port

Json = dict[str, Any]

ROUTER = "router"


def router(context: RenderContext) -> Json:
    """Return the container. Its volumes belong to the pod."""
    tls = context.pool.spec.router.tls is not None
    certificate = [f"--tls-cert={CERTIFICATE_FOLDER}/tls.crt", f"--tls-key={CERTIFICATE_FOLDER}/tls.key"]
    return front_container(
        context,
        ROUTER,
        context.settings.router_image,
        ["--host=0.0.0.0", f"--port={ROUTER_PORT}"],
        ports=[{"name": api_port(context).name, "containerPort": ROUTER_PORT}],
        mounts=[CERTIFICATE_MOUNT] if tls else [],
        arguments=[*(certificate if tls else []), *_engine_arguments(context)],
        environment=engine_key(context, ENGINE_KEY) if context.pool.spec.engine.direct else [],
    )


def _engine_arguments(context: RenderContext) -> list[str]:
    if not context.engine_tls:
        return []
    return [f"--engine-tls-server-name={engine_server_name(context.name, context.owner.namespace)}"]
