"""The client's end: a channel to one server."""

import asyncio
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from penstock_runtime.grpc.bounds import GrpcBounds
from penstock_runtime.grpc.call import GrpcCall, Message
from penstock_runtime.grpc.connection import GrpcConnection
from penstock_runtime.grpc.status import Headers, RpcError, Status

CONNECT_S = 5.0
"""Longest wait for a connection, with its TLS handshake."""

REQUESTS = 32
"""Most requests of a channel at a time; others wait. A server accepts at least 100 calls."""

TLS_SHUTDOWN_S = 1.0
"""Longest wait for a server to answer TLS's `close_notify`."""

M = TypeVar("M", bound=Message)


class Channel:
    """One connection to a server, open within the block. Entering raises RpcError without a connection.

    address: `host:port`. tls: context of TLS, whose protocol in ALPN must be `h2`; None without TLS.
    """

    def __init__(
        self,
        address: str,
        tls: Callable[[], ssl.SSLContext] | None = None,
        bounds: GrpcBounds | None = None,
    ) -> None:
        self._address, self._tls, self._bounds = address, tls, bounds
        self._connection: GrpcConnection | None = None
        self._turns = asyncio.Semaphore(REQUESTS)

    async def __aenter__(self) -> Self:
        host, _, port = self._address.rpartition(":")
        context = None if self._tls is None else self._tls()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, self._connection = await loop.create_connection(
                    lambda: GrpcConnection(bounds=self._bounds),
                    host.strip("[]"),
                    int(port),
                    ssl=context,
                    ssl_shutdown_timeout=None if context is None else TLS_SHUTDOWN_S,
                )
        except TimeoutError:
            raise RpcError(Status.UNAVAILABLE, f"no connection within {CONNECT_S:g} s") from None
        except ConnectionRefusedError:  # whose text depends on the event loop
            raise RpcError(Status.UNAVAILABLE, "no connection: connection refused") from None
        except (OSError, ValueError, OverflowError) as error:
            raise RpcError(Status.UNAVAILABLE, f"no connection: {error}") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.close(RpcError(Status.CANCELLED, "the channel is closed"))

    def open(self, method: str) -> GrpcCall:
        """Begin a call of a method, like `/package.Service/Method`. Raises RpcError without a connection."""
        if self._connection is None:
            raise RpcError(Status.UNAVAILABLE, "the channel is not open")
        scheme = "http" if self._tls is None else "https"
        return self._connection.open(headers_of(method, self._address, scheme))

    async def request(self, method: str, message: Message, kind: type[M]) -> M:
        """Return the only reply to the only message of a call. Raises RpcError."""
        async with self._turns:
            call = self.open(method)
            try:
                await call.write(message)
                call.finish_sending()
                return await call.receive_one(kind)
            finally:
                call.cancel()


def headers_of(method: str, authority: str, scheme: str) -> Headers:
    """Return the headers of a call."""
    return [
        (b":method", b"POST"),
        (b":scheme", scheme.encode()),
        (b":path", method.encode()),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"penstock"),
    ]
