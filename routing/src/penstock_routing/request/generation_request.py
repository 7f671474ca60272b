"""One generating request as it was read, before any replica is asked."""

from typing import NamedTuple

from penstock_core.domain.slo import Targets, Tier
from penstock_proto import replica_pb2 as wire

NO_TARGETS = Targets()


class GenerationRequest(NamedTuple):
    """What every replica that is asked gets, and what the router needs to choose one.

    id: the client's x-request-id, or a new one.
    body: the client's JSON, untouched.
    arrival_s: when it had been read, on the event loop's clock.
    targets: its own TTFT and TPOT, in place of its tier's; None where it brought none.
    turn: one more than that of the request before it.
    """

    id: str
    endpoint: "wire.Endpoint.ValueType"
    body: bytes
    tier: Tier
    arrival_s: float
    targets: Targets = NO_TARGETS
    stream: bool = False
    turn: int = 0
