"""The owner of a request over HTTP: its events go to the client's connection.

Unlike a session, which batches events into frames, it writes output to the client immediately. While the
client is slower, output is buffered in `UpstreamRequest`, within its bounds. An acceptance is only counted:
nothing can be written yet, so the request's task is not woken.
"""

from collections.abc import Callable

from penstock_core.domain.verdict import Admitted, BestEffort
from penstock_proto import replica_pb2 as wire
from penstock_routing.replicas import wire_conversion
from penstock_routing.replicas.upstream_request import UpstreamRequest

from penstock_sidecar.frames.outbox import Urgency
from penstock_sidecar.requests.replica_request import ReplicaRequest

Accepted = Callable[[Admitted | BestEffort, bytes], None]


class HttpOwner:
    """The owner of one HTTP request.

    outbox: this object. accepted: called with the verdict when the request is accepted, and with fields for
        the engine if the request is there already.
    """

    def __init__(self, upstream: UpstreamRequest, accepted: Accepted) -> None:
        self._upstream, self._accepted = upstream, accepted
        self.outbox = self

    def output(self, id: int, data: bytes, tokens: int, urgency: Urgency) -> None:
        """Add output to the answer."""
        self._upstream.put(data, tokens)

    def put(self, event: wire.Event, data_bytes: int = 0, urgency: Urgency = Urgency.STEP) -> None:
        """Apply a verdict or an end."""
        kind = event.WhichOneof("kind")
        if kind in ("admitted", "best_effort"):
            self._accepted(wire_conversion.accepted(event), event.engine_fields)
        elif kind is not None:
            self._upstream.finish(wire_conversion.end(event, kind))

    def forget(self, request: ReplicaRequest) -> None:
        """Do nothing: the owner has no list of requests."""
