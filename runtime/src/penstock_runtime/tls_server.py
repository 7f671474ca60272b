"""A server that counts a connection before its TLS handshake.

asyncio's own server calls the protocol after the handshake, so the number of clients that begin a handshake
and never end it is not bounded. This server counts each accepted socket immediately and closes those over the
bound.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sized
from contextlib import suppress

from penstock_runtime.http_connection.bounds import HttpBounds

TLS_SHUTDOWN_S = 1.0
"""Timeout for a client to answer TLS's `close_notify`; then its connection is closed."""

NO_SOCKETS_PAUSE_S = 1.0
"""Seconds until the next accept if the process has no free file descriptor. The kernel queues clients."""


class TlsServer:
    """Accepts connections on one listening socket until it is closed.

    connection: returns the protocol of one connection.
    bounds: `head_s` also bounds a handshake; `connections` includes handshakes.
    established: connections whose handshake is complete.
    """

    def __init__(
        self,
        listener: socket.socket,
        connection: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext,
        bounds: HttpBounds,
        established: Sized,
    ) -> None:
        self._listener, self._connection, self._tls = listener, connection, tls
        self._bounds, self._established = bounds, established
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept())
        self._accepting.add_done_callback(lambda _: listener.close())

    def close(self) -> None:
        """Stop accepting, and abort handshakes."""
        for task in (self._accepting, *self._handshakes):
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until the server is closed."""
        await asyncio.wait((self._accepting, *self._handshakes))

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except ConnectionError:  # the client has disconnected already
                continue
            except OSError:
                await asyncio.sleep(NO_SOCKETS_PAUSE_S)
                continue
            if len(self._handshakes) + len(self._established) >= self._bounds.connections:
                _refuse(accepted)
                continue
            task = asyncio.create_task(self._shake_hands(accepted))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket) -> None:
        with suppress(OSError, TimeoutError):  # includes ssl.SSLError: an invalid handshake
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._bounds.head_s,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S,
            )


def _refuse(accepted: socket.socket) -> None:
    """Close a socket so that the client reads an end of stream, even if it has sent data already."""
    with accepted, suppress(OSError):
        accepted.shutdown(socket.SHUT_WR)
