"""A ServingPool's status: observations, as the operator writes them and `kubectl` shows them.

Only one operator writes it. Names follow Kubernetes' own: conditions are `metav1.Condition`, replica counts
are a Deployment's.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from penstock_pool.cel import KEYED_BY_NAME
from penstock_pool.scalars import Name
from penstock_pool.spec import Spec

Whole = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
ConditionStatus = Literal["True", "False", "Unknown"]

CONDITIONS = {
    "Ready": "the pool matches its spec: all desired pods are ready and have the newest spec, and its "
    "Gateway has accepted its route",
    "Available": "the pool answers requests: a replica and a router are ready, or a request would start one",
    "ReplicasReady": "all desired replicas are ready",
    "RouterReady": "all desired routers are ready",
    "Progressing": "a change is being rolled out to the pods",
    "Degraded": "there is a problem, which needs action or has not recovered yet",
    "Autoscaling": "the number of replicas follows the demand; absent without spec.autoscaling",
}
"""Meaning of each condition type with status True."""


class Observed(Spec):
    """One object of the status. Code writes it, so fields can be set by their Python names too."""

    model_config = ConfigDict(validate_by_name=True)


class PoolCondition(Observed):
    """One fact about the pool, with its reason."""

    type: Annotated[str, Field(max_length=316)] = Field(
        description="Type of the condition.", examples=["Ready"]
    )
    status: ConditionStatus = Field(description="`True`, `False` or `Unknown`.", examples=["True"])
    reason: Annotated[str, Field(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=1024)] = (
        Field(description="Reason, in one word for programs.", examples=["ReplicasStarting"])
    )
    message: Annotated[str, Field(max_length=32768)] = Field(
        default="", description="Reason, in a sentence for people."
    )
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})] = Field(
        description="Time of the last change of its status.", examples=["2026-01-02T03:04:05Z"]
    )
    observed_generation: Whole = Field(
        default=0, description="The metadata.generation of the spec that it refers to."
    )


class TierStatus(Observed):
    """Attainment of one tier."""

    name: Name = Field(description="The tier.")
    attainment: Share | None = Field(
        default=None,
        description="Share of its requests whose SLO was met since the routers started, 0 to 1; absent "
        "before the first judged request.",
    )
    requests: Whole = Field(
        default=0, description="Number of its judged requests at the last change of its attainment."
    )


class AutoscalingStatus(Observed):
    """Autoscaling's last decision."""

    replicas: Whole = Field(description="Desired number of replicas.")
    reason: str = Field(default="", description="Reason, in one word.")
    message: str = Field(default="", description="Reason, with its figures.")
    last_scale_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = Field(
        default=None, description="Time of the last change of the number."
    )
    started_from: Whole | None = Field(
        default=None,
        description="The spec.replicas with which it started; a changed value starts it again from there.",
    )


class PoolStatus(Observed):
    """Observed state of a pool."""

    observed_generation: Whole = Field(
        default=0, description="The metadata.generation of the spec that this refers to."
    )
    replicas: Whole = Field(default=0, description="Number of replicas.")
    ready_replicas: Whole = Field(default=0, description="Replicas that take requests.")
    updated_replicas: Whole = Field(default=0, description="Replicas that run the present spec.")
    selector: Annotated[str, Field(max_length=1024)] = Field(
        default="", description="Label selector of the replicas' pods, for autoscalers."
    )
    policy: str = Field(default="", description="The scheduling policy that replicas run.")
    attainment: str = Field(
        default="",
        description="Share of all requests whose SLO was met since the routers started, for people.",
        examples=["98.2%"],
    )
    tiers: Annotated[tuple[TierStatus, ...], Field(max_length=16)] = Field(
        default=(), description="The same for each tier.", json_schema_extra=KEYED_BY_NAME
    )
    conditions: Annotated[tuple[PoolCondition, ...], Field(max_length=32)] = Field(
        default=(),
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        description="; ".join(f"{name}: {means}" for name, means in CONDITIONS.items()) + ".",
    )
    autoscaling: AutoscalingStatus | None = Field(
        default=None, description="Autoscaling's last decision; absent without spec.autoscaling."
    )

    def document(self) -> dict[str, Any]:
        """Return the status as Kubernetes stores it."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
