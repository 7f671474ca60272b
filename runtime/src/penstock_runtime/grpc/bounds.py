"""Bounds in bytes and time of a gRPC connection."""

from dataclasses import dataclass

from penstock_runtime.grpc.messages import MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class GrpcBounds:
    """Bounds of each connection.

    ping_s: without a byte from the peer for this long, it is pinged. pong_s: timeout for any byte after that.
    calls: most calls at a time. connections: most connections of a server.
    message_bytes: largest message of the peer.
    window_bytes: most bytes that a peer may send in one call before they are taken. At least HTTP/2's initial
        65,535: with less, h2 can stop a peer that has sent more before it knows the bound.
    connection_window_bytes: same, in all calls of a connection.
    unread_bytes: most bytes in the socket's buffer for a peer that does not read.
    """

    ping_s: float = 10.0
    pong_s: float = 5.0
    calls: int = 100
    connections: int = 1024
    message_bytes: int = MESSAGE_BYTES
    window_bytes: int = 2**20
    connection_window_bytes: int = 2**24
    unread_bytes: int = 2**21
