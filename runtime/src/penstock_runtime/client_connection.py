"""The client's end of an HTTP connection, as an application may use it beside ASGI.

ASGI tells an application of a client that has gone only if it waits for it, which takes a task per request.
And a part of a response passes several coroutines on its way to the socket. So a server puts the connection
itself into the scope's extensions, under `CLIENT`.
"""

import asyncio
from collections.abc import Callable

CLIENT = "penstock.client"
"""Extension in an ASGI scope: the `ClientConnection`."""


class ClientConnection:
    """One connection.

    gone: it was lost. slow: it was broken because the client did not read.
    on_gone: called when it is lost, for the request that is served.
    """

    __slots__ = ("_transport", "gone", "on_gone", "paused", "slow")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.gone = self.slow = self.paused = False
        self.on_gone: Callable[[], None] | None = None

    def lost(self) -> None:
        """Note that it is lost."""
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()

    def break_slow(self) -> None:
        """Break the connection at once, whatever waits to be written: the client does not read."""
        self.slow = True
        self._transport.abort()

    def write_part(self, data: bytes) -> bool:
        """Write a part of a response whose head was sent without a length. False where it has to wait."""
        if self.paused:
            return False
        if not self._transport.is_closing():  # else its loss is on its way, and uvloop would raise
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True
