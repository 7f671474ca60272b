"""Delivers the API keys of a pool's applications to its routers. The operator never reads the keys.

The kubelet mounts the Secrets, so a router starts with its keys even if the API server does not answer. After
that the router reads the Secrets itself, by name: the kubelet updates a mount only after a minute or more,
and a revoked key must stop working within seconds. The router's Role allows access to exactly these Secrets.
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
    """Return the rules of the router's Role: none if the pool has no applications."""
    secrets = sorted({*_secrets(context.pool).values()})
    if not secrets:
        return []
    return [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": secrets}]


def _secrets(pool: Pool) -> dict[str, str]:
    """Return the Secrets with keys, by application."""
    return {each.name: each.keys.secret for each in pool.spec.applications if each.keys.secret}
