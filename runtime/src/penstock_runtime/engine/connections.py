"""Connections to one engine, kept open for the next request.

Their number is bounded by the requests in progress: each has at most one connection, and one that is unused
for `idle_s` is closed.
"""

import asyncio
import socket
import ssl
from urllib.parse import quote, urlsplit

from penstock_runtime.certificate_chains import not_strict
from penstock_runtime.client_tls import Contexts
from penstock_runtime.engine.connection import EngineConnection, EngineUnreachable

PORTS = {"http": 80, "https": 443}


class EngineConnections:
    """Connections to the engine at `url`.

    connect_s: timeout for a new one, including name resolution and TLS handshake.
    idle_s: time after which an unused one is closed.
    tls: contexts for an https URL; None: the authorities that this machine trusts.
    """

    def __init__(self, url: str, connect_s: float, idle_s: float, tls: Contexts | None = None) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        self._tls = (tls or _trusted()) if parts.scheme == "https" else None
        self._connect_s, self._idle_s = connect_s, idle_s
        self._idle: dict[EngineConnection, asyncio.TimerHandle] = {}
        self._closed = False
        self.authority, self.path = parts.netloc, quote(parts.path.rstrip("/"), safe="/%")

    @property
    def idle(self) -> int:
        """Return the number of idle connections."""
        return len(self._idle)

    async def take(self) -> EngineConnection:
        """Return the connection that was used last, or a new one. Raises EngineUnreachable."""
        while self._idle:
            connection, timer = self._idle.popitem()
            timer.cancel()
            if connection.reusable:
                return connection
        return await self.open()

    async def open(self) -> EngineConnection:
        """Return a new connection. Raises EngineUnreachable."""
        try:
            async with asyncio.timeout(self._connect_s):
                return await self._open()
        except (OSError, UnicodeError) as error:  # an invalid name raises UnicodeError
            raise EngineUnreachable(error) from error

    def give_back(self, connection: EngineConnection) -> None:
        """Keep a connection for a later request if it is reusable; else close it."""
        if self._closed or not connection.reusable:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        self._idle[connection] = loop.call_later(self._idle_s, connection.close)

    def close(self) -> None:
        """Close idle connections, and keep no connections from now on."""
        self._closed = True
        while self._idle:
            connection, timer = self._idle.popitem()
            timer.cancel()
            connection.close()

    async def _open(self) -> EngineConnection:
        """Connect to the first of the host's addresses that accepts a connection."""
        loop = asyncio.get_running_loop()
        tls, name = (self._tls(), self._host) if self._tls else (None, None)
        failed: OSError = ConnectionError(f"{self._host} has no address")
        for *_, address in await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM):
            try:
                _, connection = await loop.create_connection(
                    lambda: EngineConnection(self._forget),
                    *address[:2],
                    ssl=tls,
                    server_hostname=name,
                )
                return connection
            except OSError as error:
                failed = error
        raise failed

    def _forget(self, connection: EngineConnection) -> None:
        timer = self._idle.pop(connection, None)
        if timer is not None:
            timer.cancel()


def _trusted() -> Contexts:
    """Return the context with the authorities that this machine trusts."""
    context = not_strict(ssl.create_default_context())
    return lambda: context
