"""Bounds of an HTTP server on what its clients may send, hold and delay."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """Bounds of one process on its clients.

    head_bytes: longest request line and headers together.
    head_s: longest time from the connection, or a request's first byte, to the end of its head.
    keep_alive_s: time after which an idle connection is closed. Longer than the idle timeout of usual client
        pools, so that the client closes first.
    connections: open at once; more are answered 503 and closed. Under TLS they are counted from before the
        handshake, and those over the bound are closed without one.
    half_closed_s: a client that has closed its sending side looks like one that has disconnected. A
        response that is ready within this time still reaches it; afterwards it counts as disconnected.
    linger_s, linger_bytes: the rest of a request that is already answered is read for this long and up to
        this length; then the connection is aborted.
    write_s: longest time in which a client reads no written bytes; detected within twice that.
    last_call_s: time after which an idle connection is closed when the server stops, because its client may
        have sent a request before it knew of the stop.
    """

    head_bytes: int = 32768
    head_s: float = 30.0
    keep_alive_s: int = 75
    connections: int = 16384
    half_closed_s: float = 0.1
    linger_s: float = 30.0
    linger_bytes: int = 64 * 2**20
    write_s: float = 30.0
    last_call_s: float = 0.2
