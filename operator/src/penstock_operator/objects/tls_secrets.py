"""Secrets with the keys for mutual TLS: one that pods mount parts of, and one that nobody mounts.

Pods get the public authorities and their own pair. What signs stays in a Secret of its own, so that no pod's
volume can show it by mistake.
"""

from base64 import b64encode

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import authority_name, tls_name
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import Inputs


def tls_secrets(inputs: Inputs) -> tuple[Manifest, ...]:
    """Both of them; none where TLS is off."""
    held = inputs.facts.credentials
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
    }
    return (
        _secret(inputs, authority_name(inputs.name), signing),
        _secret(inputs, tls_name(inputs.name), published),
    )


def _secret(inputs: Inputs, name: str, entries: dict[str, bytes]) -> Manifest:
    data = {entry: b64encode(value).decode() for entry, value in entries.items()}
    return child(inputs, "v1", "Secret", name, type="Opaque", data=data)
