"""What a replica says of itself: where its engine and HTTP API are, how fast and how long it generates."""

from dataclasses import dataclass

from penstock_core.timing.time_model import TimeModel
from penstock_proto import replica_pb2 as wire

from penstock_routing.replicas import wire_conversion


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """A description; by default of a replica that has sent none.

    max_model_len: its longest sequence in tokens, 0 where unknown.
    metrics_url: where its own metrics are; empty where unknown.
    time_model: its engine's; None where unknown.
    http_endpoint: where gateways reach it over HTTP; None where they cannot.
    engine_endpoint: where routers reach its engine with a ticket; None where they cannot.
    engine_tls: whether the engine serves TLS there.
    """

    max_model_len: int = 0
    metrics_url: str = ""
    time_model: TimeModel | None = None
    http_endpoint: str | None = None
    engine_endpoint: str | None = None
    engine_tls: bool = False


def description_of(address: str, reply: wire.DescribeReply) -> ReplicaDescription:
    """Return what the replica at this address has said. Raises MalformedMessage."""
    return ReplicaDescription(
        reply.max_model_len,
        reply.metrics_url,
        wire_conversion.time_model(reply),
        wire_conversion.http_endpoint(address, reply),
        wire_conversion.engine_endpoint(address, reply),
        reply.engine_tls_port > 0,
    )
