"""Secrets for mutual TLS: one that pods mount in part, and one that no pod mounts.

Pods get the public certificates of the authorities and their own pair. Signing keys are in a separate Secret,
so that no pod's volume can expose them by mistake.
"""

from base64 import b64encode

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import authority_name, tls_name
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import RenderContext


def tls_secrets(context: RenderContext) -> tuple[Manifest, ...]:
    """Return both Secrets; none if TLS is off."""
    held = context.facts.credentials
    if held is None:
        return ()
    authorities = b"".join(pair.certificate for pair in held.authorities)
    signing = {"ca.crt": authorities, "ca.key": b"".join(pair.key for pair in held.authorities)}
    published = {
        "ca.crt": authorities,
        "tls.crt": held.server.certificate,
        "tls.key": held.server.key,
        "client.crt": held.client.certificate,
        "client.key": held.client.key,
        "picker.crt": held.picker.certificate,
        "picker.key": held.picker.key,
        "engine.crt": held.engine.certificate,
        "engine.key": held.engine.key,
    }
    return (
        _secret(context, authority_name(context.name), signing),
        _secret(context, tls_name(context.name), published),
    )


def _secret(context: RenderContext, name: str, entries: dict[str, bytes]) -> Manifest:
    data = {entry: b64encode(value).decode() for entry, value in entries.items()}
    return child(context, "v1", "Secret", name, type="Opaque", data=data)
