"""Derives the desired state of a pool: its objects, and the problems of its spec.

Pure. If the operator cannot read or run a pool, its objects are left unchanged until the pool is corrected.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock_pool import Pool, PoolError, parse_pool
from penstock_pool.gateway_spec import GatewayName

from penstock_operator.autoscaling.autoscaler import current_replicas
from penstock_operator.manifests.manifest import Manifest, PoolOwner
from penstock_operator.objects.pool_objects import desired
from penstock_operator.objects.render_context import RenderFacts, UnsupportedPool
from penstock_operator.reconcile.gateway_change import gateway_stage
from penstock_operator.reconcile.ingress_hosts import host_of, older_claimant
from penstock_operator.settings import OperatorSettings
from penstock_operator.status.diagnosis import Cause, PoolProblem
from penstock_operator.tls.credentials import Credentials


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The desired state.

    objects: None if they are left unchanged, for a reason in `problems`.
    front: the gateway that takes requests now. gateway_pending: whether it is not yet the pool's gateway.
    """

    objects: tuple[Manifest, ...] | None
    problems: tuple[PoolProblem, ...]
    replicas: int
    front: GatewayName = "router"
    gateway_pending: bool = False


def parse_spec(document: Manifest) -> Pool | PoolProblem:
    """Parse a pool. Returns a problem if it is invalid, for example with a CRD of another release."""
    try:
        return parse_pool({k: v for k, v in document.items() if k != "status"}, "pool")
    except PoolError as error:
        lines = [line.removeprefix("pool: ") for line in error.lines]
        return PoolProblem(Cause.SPEC_INVALID, "; ".join(lines))


def owner_of(document: Manifest) -> PoolOwner:
    """Return the pool as owner of its objects."""
    metadata = document["metadata"]
    return PoolOwner(metadata["name"], metadata["namespace"], metadata["uid"])


def desired_state(
    pool: Pool,
    document: Manifest,
    others: Iterable[Manifest],
    settings: OperatorSettings,
    credentials: Credentials | None,
    *,
    observed: Iterable[Manifest] = (),
    capacity_rps: float | None = None,
) -> DesiredState:
    """Return the desired state of a valid pool.

    document: the pool as the API server has it; others: all other pools; observed: the pool's objects;
    capacity_rps: as in `RenderFacts`.
    """
    status: Mapping[str, Any] = document.get("status", {})
    replicas = current_replicas(pool, status)
    problems: tuple[PoolProblem, ...] = ()
    if (older := older_claimant(document, others)) is not None:
        problems = (_host_taken(document, older),)
        pool = pool.model_copy(update={"spec": pool.spec.model_copy(update={"ingress": None})})
    gateway = gateway_stage(pool.spec.gateway, observed)
    facts = RenderFacts(replicas, credentials, capacity_rps, gateway)
    try:
        objects = desired(pool, owner_of(document), settings, facts)
    except UnsupportedPool as error:
        cause = PoolProblem(Cause.CANNOT_RUN, str(error))
        return DesiredState(None, (*problems, cause), replicas, gateway.front)
    return DesiredState(objects, problems, replicas, gateway.front, gateway.front != pool.spec.gateway)


def _host_taken(document: Manifest, older: Manifest) -> PoolProblem:
    metadata = older["metadata"]
    return PoolProblem(
        Cause.HOST_TAKEN,
        f"spec.ingress.host: {host_of(document)} belongs to the older pool {metadata['namespace']}/"
        f"{metadata['name']}; this pool is reachable only in the cluster until one of them has another host",
    )
