"""The description that a replica sends of itself: its endpoints, time model and context length."""

from dataclasses import dataclass

from penstock_core.timing.time_model import TimeModel
from penstock_proto import replica_pb2 as wire

from penstock_routing.replicas import wire_conversion


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """A description. The defaults are those of a replica that has sent none.

    max_model_len: longest sequence in tokens; 0 if unknown.
    metrics_url: URL of the replica's metrics; empty if unknown.
    time_model: time model of its engine; None if unknown.
    http_endpoint: `host:port` at which gateways reach it over HTTP; None if they cannot.
    engine_endpoint: `host:port` at which routers reach its engine with a ticket; None if they cannot.
    engine_tls: whether the engine serves TLS there.
    """

    max_model_len: int = 0
    metrics_url: str = ""
    time_model: TimeModel | None = None
    http_endpoint: str | None = None
    engine_endpoint: str | None = None
    engine_tls: bool = False


def description_of(address: str, reply: wire.DescribeReply) -> ReplicaDescription:
    """Convert the description of the replica at this address. Raises MalformedMessage."""
    return ReplicaDescription(
        reply.max_model_len,
        reply.metrics_url,
        wire_conversion.time_model(reply),
        wire_conversion.http_endpoint(address, reply),
        wire_conversion.engine_endpoint(address, reply),
        reply.engine_tls_port > 0,
    )
