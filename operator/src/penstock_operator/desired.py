"""What objects a ServingPool wants.

One pure function from the pool, and the few facts that are not in it, to every object that should exist. An
object that is no longer wanted is simply not in the answer: `decide` finds it as an orphan. Each kind of
child has its own file in `objects/`; here they are only put in the order in which they are best applied:
what pods need to start, then the pods, then what leads traffic to them.
"""

from dataclasses import dataclass

from penstock_pool import Pool

from penstock_operator.manifest import Manifest, Owner
from penstock_operator.settings import Settings
from penstock_operator.tls import Credentials


class UnfitPool(Exception):
    """A valid pool that this operator cannot run. The message is for its status: field, what, what to do."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is wanted beside the pool's own words.

    replicas: how many replicas to run now: `spec.replicas`, or what autoscaling decided.
    credentials: keys and certificates to publish; None where TLS is off, and only there.
    """

    replicas: int
    credentials: Credentials | None


def desired(pool: Pool, owner: Owner, settings: Settings, facts: Facts) -> tuple[Manifest, ...]:
    """Every object of the pool, in the order to apply them.

    Each has the pool's labels, its ownerReference and its namespace, and the annotation
    `penstock.dev/wanted`. Equal inputs give equal manifests. Raises UnfitPool.
    """
    raise NotImplementedError
