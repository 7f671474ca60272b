"""The values that a pool's objects are rendered from: the pool, its owner reference, settings, and facts."""

from dataclasses import dataclass
from typing import NamedTuple

from penstock_pool import Pool
from penstock_pool.gateway_spec import GatewayName

from penstock_operator.manifests.manifest import PoolOwner
from penstock_operator.settings import OperatorSettings
from penstock_operator.tls.credentials import Credentials


class UnsupportedPool(Exception):
    """A valid pool that this operator cannot run. The message is for its status: field, cause, remedy."""


class GatewayStage(NamedTuple):
    """The gateway of a pool now, which differs from its spec while the gateway changes.

    front: the gateway that runs in front of the replicas. serves: the gateway for which sidecars serve HTTP;
    none for `router`, which uses gRPC.
    """

    front: GatewayName
    serves: GatewayName

    @property
    def http(self) -> bool:
        """Return whether sidecars serve HTTP."""
        return self.serves != "router"


@dataclass(frozen=True, slots=True)
class RenderFacts:
    """Facts for rendering that are not in the pool.

    replicas: number of replicas to run now: `spec.replicas`, or autoscaling's decision.
    credentials: keys and certificates to publish; None if and only if TLS is off.
    capacity_rps: learned capacity of a replica in requests per second; None: not learned, or not scaled here.
    gateway: None: the gateway of the spec; otherwise a stage of a change.
    """

    replicas: int
    credentials: Credentials | None
    capacity_rps: float | None = None
    gateway: GatewayStage | None = None


@dataclass(frozen=True, slots=True)
class RenderContext:
    """All inputs of an object's manifest."""

    pool: Pool
    owner: PoolOwner
    settings: OperatorSettings
    facts: RenderFacts

    @property
    def name(self) -> str:
        """Return the pool's name."""
        return self.owner.name

    @property
    def engine_tls(self) -> bool:
        """Return whether engines serve TLS: their answers leave the pod."""
        return self.settings.tls and self.pool.spec.engine.direct

    @property
    def engine_behind_gateway(self) -> bool:
        """Return whether Envoys send requests to engines' own ports."""
        return self.gateway.serves == "envoy" and self.pool.spec.engine.direct

    @property
    def gateway(self) -> GatewayStage:
        """Return the present stage of the gateway."""
        gateway = self.pool.spec.gateway
        return self.facts.gateway or GatewayStage(gateway, gateway)
