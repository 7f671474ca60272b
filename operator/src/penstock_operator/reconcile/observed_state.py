"""Reads the state that a reconciliation needs and that watches do not provide.

Most state comes from the cache. Read on each reconciliation: the two Secrets with the pool's keys, which
are not watched; whether the objects that the pool refers to exist; and, while pods are missing, the Warning
Events about them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from penstock_pool import Pool

from penstock_operator.cluster.api_client import Api
from penstock_operator.cluster.cache import PoolKey
from penstock_operator.cluster.kinds import EVENT
from penstock_operator.manifests.manifest import Manifest, Ref
from penstock_operator.manifests.names import authority_name, replica_name, tls_name
from penstock_operator.manifests.pods import is_ready, pods_of
from penstock_operator.settings import OperatorSettings
from penstock_operator.status.diagnosis import PoolProblem, missing_object
from penstock_operator.status.pod_references import references

MAX_PODS_READ = 3
"""Maximum number of pods whose Warnings are read; most pods have the same ones."""


@dataclass(frozen=True, slots=True)
class PoolSecrets:
    """The pool's two Secrets; None for one that does not exist."""

    authority: Manifest | None
    published: Manifest | None

    def existing(self) -> tuple[Manifest, ...]:
        """Return those that exist."""
        return tuple(secret for secret in (self.authority, self.published) if secret is not None)


async def read_secrets(api: Api, key: PoolKey) -> PoolSecrets:
    """Read the pool's two Secrets."""
    names = authority_name(key.name), tls_name(key.name)
    refs = (Ref("v1", "Secret", key.namespace, name) for name in names)
    return PoolSecrets(*await asyncio.gather(*(api.get(ref) for ref in refs)))


async def missing_references(
    api: Api, pool: Pool, settings: OperatorSettings, wanted: Sequence[Manifest]
) -> tuple[PoolProblem, ...]:
    """Return a problem for each object that the pool's pods refer to and that does not exist."""
    needed = references(pool, settings, wanted)
    existing_flags = await asyncio.gather(*(api.exists(reference.ref) for reference in needed))
    return tuple(
        missing_object(reference.ref, reference.field, reference.component)
        for reference, exists in zip(needed, existing_flags, strict=True)
        if not exists
    )


async def pod_warnings(
    api: Api, key: PoolKey, children: Sequence[Manifest], replicas: int
) -> tuple[Manifest, ...]:
    """Read Warning Events about pods that are missing or not ready; none if all are ready."""
    pods = pods_of(children)
    not_ready = [pod["metadata"]["name"] for pod in pods if not is_ready(pod)][:MAX_PODS_READ]
    created = sum(pod["metadata"]["name"].startswith(f"{replica_name(key.name)}-") for pod in pods)
    names = [*not_ready, *([replica_name(key.name)] if created < replicas else [])]
    lists = (
        api.list(EVENT, key.namespace, fields=f"type=Warning,involvedObject.name={name}") for name in names
    )
    return tuple(event for events, _ in await asyncio.gather(*lists) for event in events)
