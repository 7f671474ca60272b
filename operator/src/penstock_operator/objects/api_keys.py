"""How routers get the API keys of their pool's applications. The operator never reads them.

The kubelet mounts the Secrets, so that a router starts with its keys whether or not the API server answers.
From then on the router reads the Secrets itself, by name, because the kubelet brings a change only after a
minute or more, and a revoked key has to stop within seconds. Its right is to get exactly these Secrets.
"""

from typing import Any

from penstock_pool import Pool

from penstock_operator.objects.pool_file import KEYS_ENTRY
from penstock_operator.objects.render_context import RenderContext

Json = dict[str, Any]


def key_volumes(context: RenderContext) -> list[Json]:
    """Return the parts of the router's volume that hold the keys."""
    return [
        {"secret": {"name": secret, "items": [{"key": KEYS_ENTRY, "path": f"keys/{secret}/{KEYS_ENTRY}"}]}}
        for secret in dict.fromkeys(_secrets(context.pool).values())
    ]


def key_arguments(context: RenderContext) -> list[str]:
    """Return the router's arguments that name each application's Secret."""
    namespace = context.owner.namespace
    return [f"--key-secret={name}={namespace}/{secret}" for name, secret in _secrets(context.pool).items()]


def key_rules(context: RenderContext) -> list[Json]:
    """Return the rules of the router's Role: none where the pool has no applications."""
    secrets = sorted({*_secrets(context.pool).values()})
    if not secrets:
        return []
    return [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": secrets}]


def _secrets(pool: Pool) -> dict[str, str]:
    """Return the Secrets with keys, by application."""
    return {each.name: each.keys.secret for each in pool.spec.applications if each.keys.secret}
