"""The ServingPool, version v1alpha1. [fixed: group, kind, field names]"""

from typing import Annotated, Any, Literal

from penstock_core.slo import Tier
from pydantic import ConfigDict, Field

from penstock_pool.application_spec import Application
from penstock_pool.engine_spec import EngineSpec, ModelSpec
from penstock_pool.scalars import Count, Name
from penstock_pool.serving_spec import Autoscaling, RouterSpec, Routing, Scheduling
from penstock_pool.spec import Spec
from penstock_pool.tier_spec import TierSpec

API_VERSION = "penstock.dev/v1alpha1"
KIND = "ServingPool"


class Metadata(Spec):
    """Kubernetes object metadata. Kubernetes owns its fields, so unknown ones pass."""

    model_config = ConfigDict(extra="ignore")

    name: Name = Field(description="The pool's name.", examples=["llama3-8b"])


class PoolSpec(Spec):
    """What is wanted."""

    model: ModelSpec = Field(description="The model that is served.")
    engine: EngineSpec = Field(description="The engine that runs it.")
    replicas: Count = Field(
        default=1, description="Replicas to start with, each an engine and a sidecar.", examples=[2]
    )
    autoscaling: Autoscaling | None = Field(
        default=None, description="Bounds for scaling; absent: no scaling."
    )
    tiers: Annotated[tuple[TierSpec, ...], Field(min_length=1)] = Field(
        description="Classes of requests, each with its promise."
    )
    default_tier: Name = Field(
        default_factory=lambda known: known["tiers"][0].name,
        description="Tier of requests that name none. Where it is absent, the first tier.",
        examples=["chat"],
    )
    applications: tuple[Application, ...] = Field(
        default=(), description="Who may use the pool. Once given, a key that none has is answered 401."
    )
    scheduling: Scheduling = Field(default=Scheduling(), description="Inside a replica.")
    routing: Routing = Field(default=Routing(), description="Between replicas.")
    router: RouterSpec = Field(default=RouterSpec(), description="The routers themselves.")


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
