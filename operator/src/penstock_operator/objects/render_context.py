"""The values that a pool's objects are rendered from: the pool, its owner reference, settings, and facts."""

from dataclasses import dataclass

from penstock_pool import Pool

from penstock_operator.manifests.manifest import PoolOwner
from penstock_operator.settings import OperatorSettings
from penstock_operator.tls.credentials import Credentials


class UnsupportedPool(Exception):
    """A valid pool that this operator cannot run. The message is for its status: field, what, what to do."""


@dataclass(frozen=True, slots=True)
class RenderFacts:
    """What is wanted beside the pool's own words.

    replicas: how many replicas to run now: `spec.replicas`, or what autoscaling decided.
    credentials: keys and certificates to publish; None where TLS is off, and only there.
    capacity_rps: what autoscaling has learned that a replica takes; None: nothing yet, or it does not scale.
    """

    replicas: int
    credentials: Credentials | None
    capacity_rps: float | None = None


@dataclass(frozen=True, slots=True)
class RenderContext:
    """All that an object may depend on."""

    pool: Pool
    owner: PoolOwner
    settings: OperatorSettings
    facts: RenderFacts

    @property
    def name(self) -> str:
        """The pool's."""
        return self.owner.name
