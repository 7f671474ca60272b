"""The ServingPool, version v1alpha1. [fixed: group, kind, field names]"""

from typing import Annotated, Any, Literal, Self

from penstock_core.slo import Tier
from pydantic import ConfigDict, Field, model_validator

from penstock_pool.application_spec import Application
from penstock_pool.autoscaling_spec import Autoscaling
from penstock_pool.engine_spec import EngineSpec, ModelSpec
from penstock_pool.ingress_spec import Ingress
from penstock_pool.monitoring_spec import Monitoring
from penstock_pool.scalars import Name, PoolName, Replicas, wrong_at
from penstock_pool.serving_spec import RouterSpec, Routing, Scheduling
from penstock_pool.spec import Spec
from penstock_pool.tier_spec import TierSpec

API_VERSION = "penstock.dev/v1alpha1"
KIND = "ServingPool"


class Metadata(Spec):
    """Kubernetes object metadata. Kubernetes owns its fields, so unknown ones pass."""

    model_config = ConfigDict(extra="ignore")

    name: PoolName = Field(description="The pool's name.", examples=["llama3-8b"])


class PoolSpec(Spec):
    """What is wanted."""

    model: ModelSpec = Field(description="The model that is served.")
    engine: EngineSpec = Field(description="The engine that runs it.")
    replicas: Replicas = Field(
        default=1,
        description="Replicas, each an engine and a sidecar; where there is autoscaling, to start with. "
        "0 in a cluster: none.",
        examples=[2],
    )
    autoscaling: Autoscaling | None = Field(
        default=None, description="How a cluster scales the replicas; absent: it does not."
    )
    tiers: Annotated[tuple[TierSpec, ...], Field(min_length=1, max_length=32)] = Field(
        description="Classes of requests, each with its promise."
    )
    default_tier: Name = Field(
        default_factory=lambda known: known["tiers"][0].name,
        description="Tier of requests that name none. Where it is absent, the first tier.",
        examples=["chat"],
    )
    applications: Annotated[tuple[Application, ...], Field(max_length=256)] = Field(
        default=(), description="Who may use the pool. Once given, a key that none has is answered 401."
    )
    scheduling: Scheduling = Field(default=Scheduling(), description="Inside a replica.")
    routing: Routing = Field(default=Routing(), description="Between replicas.")
    router: RouterSpec = Field(default=RouterSpec(), description="The routers themselves.")
    ingress: Ingress | None = Field(
        default=None, description="How clients outside the cluster reach the pool; absent: they do not."
    )
    monitoring: Monitoring = Field(default=Monitoring(), description="How a cluster's Prometheus finds it.")

    @model_validator(mode="after")
    def _starts_within_the_bounds(self) -> Self:
        bounds = self.autoscaling
        if bounds is None or bounds.min_replicas <= self.replicas <= bounds.max_replicas:
            return self
        raise wrong_at(
            "replicas",
            f"{self.replicas} is outside autoscaling's minReplicas {bounds.min_replicas} to maxReplicas "
            f"{bounds.max_replicas}; start with one of these",
        )


class Pool(Spec):
    """One ServingPool."""

    api_version: Literal["penstock.dev/v1alpha1"] = Field(description="Always penstock.dev/v1alpha1.")
    kind: Literal["ServingPool"] = Field(description="Always ServingPool.")
    metadata: Metadata = Field(description="Its name.")
    spec: PoolSpec = Field(description="What is wanted.")
    status: dict[str, Any] | None = Field(
        default=None, description="What a cluster observed; local tools do not look at it."
    )

    def tiers(self) -> dict[str, Tier]:
        """Tiers by name, as the core knows them."""
        return {tier.name: tier.to_core() for tier in self.spec.tiers}
