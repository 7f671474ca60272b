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
    credentials = context.facts.credentials
    if credentials is None:
        return ()
    authorities = b"".join(pair.certificate for pair in credentials.authorities)
    signing = {"ca.crt": authorities, "ca.key": b"".join(pair.key for pair in credentials.authorities)}
    published = {
        "ca.crt": authorities,
        "tls.crt": credentials.server.certificate,
        "tls.key": credentials.server.key,
        "client.crt": credentials.client.certificate,
        "client.key": credentials.client.key,
        "picker.crt": credentials.picker.certificate,
        "picker.key": credentials.picker.key,
        "engine.crt": credentials.engine.certificate,
        "engine.key": credentials.engine.key,
    }
    return (
        _secret(context, authority_name(context.name), signing),
        _secret(context, tls_name(context.name), published),
    )


def _secret(context: RenderContext, name: str, entries: dict[str, bytes]) -> Manifest:
    data = {entry: b64encode(value).decode() for entry, value in entries.items()}
    return child(context, "v1", "Secret", name, type="Opaque", data=data)
