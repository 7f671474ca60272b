"""The methods of `penstock.v1.Replica`, by their paths in HTTP/2."""

from penstock_proto import replica_pb2

SERVICE = replica_pb2.DESCRIPTOR.services_by_name["Replica"].full_name

SESSION, DESCRIBE, DETOKENIZE, DRAIN, RESUME = (
    f"/{SERVICE}/{method}" for method in ("Session", "Describe", "Detokenize", "Drain", "Resume")
)
