"""Keys and certificates by which routers and replicas trust one another.

Each pool has its own authority. It signs one certificate for replicas (a server's, made out to the headless
Service) and one for routers (a client's), and a pod holds only its own key. Nobody outside the pool's
namespace is trusted, and nobody has to install cert-manager.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from penstock_operator.manifest import Manifest

MakeKey = Callable[[], EllipticCurvePrivateKey]
"""A new private key: the one thing here that is random, so it comes in."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Credentials:
    """All of a pool's keys. authorities: oldest first; more than one while they change over."""

    authorities: tuple[Pair, ...]
    server: Pair
    client: Pair


def read_credentials(authority: Manifest | None, published: Manifest | None) -> Credentials | None:
    """What two Secrets hold, `names.authority_name` and `names.tls_name`; None if anything is missing."""
    raise NotImplementedError


def renewed(held: Credentials | None, server_name: str, now: datetime, make_key: MakeKey) -> Credentials:
    """Credentials good for a while yet: those held where nothing is due, else with what was due made anew.

    now: aware. Random only by `make_key`.
    """
    raise NotImplementedError
