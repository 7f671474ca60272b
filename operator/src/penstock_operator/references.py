"""What a pool names and does not own: Secrets, ConfigMaps and claims that its pods are going to need.

The kubelet would notice too, minutes later and pod by pod. Looked up here, what is absent is said at once,
by the field of the pool that names it. Only existence is asked: the content of a Secret stays where it is.
"""

from collections.abc import Iterator
from typing import NamedTuple

from penstock_pool import Pool

from penstock_operator.manifest import Ref
from penstock_operator.names import Component


class Reference(NamedTuple):
    """An object that somebody else has to make. field: where the pool names it."""

    ref: Ref
    field: str
    component: Component


def references(pool: Pool, namespace: str) -> Iterator[Reference]:
    """Every object that the pool's pods cannot start without."""
    for index, application in enumerate(pool.spec.applications):
        if application.keys.secret is not None:
            ref = Ref("v1", "Secret", namespace, application.keys.secret)
            yield Reference(ref, f"spec.applications[{index}].keys.secret", Component.ROUTER)
    source = pool.spec.model.source
    if source is not None and source.persistent_volume_claim is not None:
        ref = Ref("v1", "PersistentVolumeClaim", namespace, source.persistent_volume_claim)
        yield Reference(ref, "spec.model.source.persistentVolumeClaim", Component.REPLICA)
