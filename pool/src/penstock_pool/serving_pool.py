"""The ServingPool, version v1alpha1. [fixed: group, kind, field names]"""

from typing import Annotated, Any, Literal, Self

from penstock_core.domain.slo import Tier
from pydantic import ConfigDict, Field, model_validator

from penstock_pool.application_spec import Application
from penstock_pool.autoscaling_spec import Autoscaling
from penstock_pool.cel import KEYED_BY_NAME, CelRule, checked_by
from penstock_pool.engine_spec import EngineSpec, ModelSpec
from penstock_pool.gateway_spec import (
    GATEWAY_RULES,
    NO_CERTIFICATE,
    NO_INGRESS,
    NO_SCALE_TO_ZERO,
    NO_TRACING,
    GatewayName,
)
from penstock_pool.ingress_spec import Ingress
from penstock_pool.monitoring_spec import Monitoring
from penstock_pool.requests_spec import Requests
from penstock_pool.scalars import POOL_NAME, Name, PoolName, Replicas, wrong_at
from penstock_pool.serving_spec import RouterSpec, Routing, Scheduling
from penstock_pool.spec import Spec
from penstock_pool.tier_spec import TierSpec

API_VERSION = "penstock.dev/v1alpha1"
KIND = "ServingPool"


class Metadata(Spec):
    """Kubernetes object metadata. Kubernetes owns its fields, so unknown ones pass."""

    model_config = ConfigDict(extra="ignore")

    name: PoolName = Field(description="The pool's name.", examples=["llama3-8b"])


_TIER_HINT = "write the name of one in tiers, such as {self.tiers[0].name}"


class PoolSpec(Spec):
    """The desired state."""

    model_config = checked_by(
        CelRule(
            "!has(self.autoscaling) || self.replicas <= self.autoscaling.maxReplicas",
            "is above autoscaling's maxReplicas; at most that",
            field_path="replicas",
        ),
        CelRule(
            "self.tiers.size() == 0 || !has(self.defaultTier) || "
            "self.tiers.exists(tier, tier.name == self.defaultTier)",
            f'"{{self.defaultTier}}" is not a tier; {_TIER_HINT}',
            field_path="defaultTier",
        ),
        CelRule(
            "self.tiers.size() == 0 || !has(self.applications) || self.applications.all(application, "
            "self.tiers.exists(tier, tier.name == application.tier))",
            f"the tier of an application does not exist; {_TIER_HINT}",
            field_path="applications",
        ),
        CelRule(
            "self.tiers.size() == 0 || !has(self.applications) || self.applications.all(application, "
            "!has(application.allow) || "
            "application.allow.all(name, self.tiers.exists(tier, tier.name == name)))",
            f"a tier that an application allows does not exist; {_TIER_HINT}",
            field_path="applications",
        ),
        *GATEWAY_RULES,
    )

    model: ModelSpec = Field(description="The model that is served.")
    engine: EngineSpec = Field(description="The engine that runs it.")
    replicas: Replicas = Field(
        default=1,
        description="Replicas, each an engine and a sidecar. 0 in a cluster: none. With autoscaling: the "
        "initial number, but at least minReplicas.",
        examples=[2],
    )
    autoscaling: Autoscaling | None = Field(
        default=None, description="Autoscaling of the replicas in a cluster; absent: none."
    )
    tiers: Annotated[tuple[TierSpec, ...], Field(min_length=1, max_length=16)] = Field(
        description="Classes of requests, each with its SLO.", json_schema_extra=KEYED_BY_NAME
    )
    default_tier: Name = Field(
        default_factory=lambda known: known["tiers"][0].name,
        description="Tier of requests that do not name one. Absent: the first tier.",
        examples=["chat"],
    )
    applications: Annotated[tuple[Application, ...], Field(max_length=128)] = Field(
        default=(),
        description="Clients, identified by API keys. If there are any, a request without a valid key is "
        "answered 401.",
        json_schema_extra=KEYED_BY_NAME,
    )
    requests: Requests = Field(default=Requests(), description="Allowed contents of clients' requests.")
    scheduling: Scheduling = Field(default=Scheduling(), description="Scheduling on a replica.")
    routing: Routing = Field(default=Routing(), description="Routing between replicas.")
    gateway: GatewayName = Field(
        default="router",
        description="Server of clients' requests in a cluster: `router`, Penstock's own router; `envoy`, an "
        "Envoy with a picker, which selects the replicas; or `inferencePool`, a Gateway of the cluster that "
        "uses the picker through an InferencePool.",
        examples=["envoy"],
    )
    router: RouterSpec = Field(
        default=RouterSpec(), description="The routers, or the gateway in their place (see `gateway`)."
    )
    ingress: Ingress | None = Field(
        default=None, description="Access for clients outside the cluster; absent: none."
    )
    monitoring: Monitoring = Field(default=Monitoring(), description="Discovery by a cluster's Prometheus.")

    @property
    def initial_replicas(self) -> int:
        """Return the number of replicas before an autoscaler's first decision."""
        return max(self.replicas, self.autoscaling.min_replicas if self.autoscaling else 0)

    @property
    def routing_order(self) -> str:
        """Return the name of the order in which replicas are tried."""
        return self.routing.order_with(self.engine.caches_prefixes)

    @model_validator(mode="after")
    def _initial_replicas_within_bounds(self) -> Self:
        bounds = self.autoscaling
        if bounds is not None and self.replicas > bounds.max_replicas:
            raise wrong_at(
                "replicas",
                f"{self.replicas} is above autoscaling's maxReplicas {bounds.max_replicas}; at most that",
            )
        return self

    @model_validator(mode="after")
    def _gateway_supports_fields(self) -> Self:
        to_zero = self.autoscaling is not None and self.autoscaling.min_replicas == 0
        if to_zero and self.gateway != "router":
            raise wrong_at("autoscaling.minReplicas", NO_SCALE_TO_ZERO)
        if self.gateway == "inferencePool" and self.ingress is not None and self.ingress.kind == "Ingress":
            raise wrong_at("ingress.kind", NO_INGRESS)
        if self.gateway != "envoy" and self.router.tracing is not None:
            raise wrong_at("router.tracing", NO_TRACING)
        if self.gateway == "inferencePool" and self.router.tls is not None:
            raise wrong_at("router.tls", NO_CERTIFICATE)
        return self


class Pool(Spec):
    """One ServingPool."""

    model_config = checked_by(
        CelRule(
            f"self.metadata.name.size() <= 40 && self.metadata.name.matches('{POOL_NAME}')",
            "metadata.name: is not a valid name; lower-case letters, digits and inner dashes, a letter "
            "first, at most 40",
        ),
    )

    api_version: Literal["penstock.dev/v1alpha1"] = Field(description="Always penstock.dev/v1alpha1.")
    kind: Literal["ServingPool"] = Field(description="Always ServingPool.")
    metadata: Metadata = Field(description="Its name.")
    spec: PoolSpec = Field(description="The desired state.")
    status: dict[str, Any] | None = Field(
        default=None, description="State observed in a cluster; local tools ignore it."
    )

    def tiers(self) -> dict[str, Tier]:
        """Return the core's tiers by name."""
        return {tier.name: tier.to_core() for tier in self.spec.tiers}
