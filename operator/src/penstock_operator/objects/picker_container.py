"""The picker of an InferencePool: Gateways of the cluster query it with ext_proc.

It serves TLS with a certificate of the pool's authority, unless TLS is off, because Gateways expect TLS.
"""

from typing import Any

from penstock_operator.manifests.names import PICKER_PORT
from penstock_operator.objects.containers import TLS_FOLDER
from penstock_operator.objects.front_container import front_container
from penstock_operator.objects.render_context import RenderContext

Json = dict[str, Any]

PICKER = "picker"


def picker(context: RenderContext) -> Json:
    """Return the container. Its volumes belong to the pod."""
    certificate = [f"--tls-cert={TLS_FOLDER}/picker.crt", f"--tls-key={TLS_FOLDER}/picker.key"]
    return front_container(
        context,
        PICKER,
        context.settings.picker_image,
        ["--host=0.0.0.0", f"--ext-proc-port={PICKER_PORT}"],
        ports=[{"name": "ext-proc", "containerPort": PICKER_PORT}],
        arguments=certificate if context.settings.tls else [],
        drains=False,
    )
