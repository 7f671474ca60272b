"""The client's connection, for applications that need more than ASGI offers.

ASGI reports that a client has disconnected only to an application that awaits it, which costs one task per
request. And each part of a response passes several coroutines on its way to the socket. So the server puts
the connection itself into the scope's extensions, under `CLIENT`.
"""

import asyncio
from collections.abc import Callable

CLIENT = "penstock.client"
"""Key of the `ClientConnection` in an ASGI scope's extensions."""


class ClientConnection:
    """One connection.

    gone: it was lost. slow: it was aborted because the client did not read.
    on_gone: called when it is lost, for the request in progress.
    """

    __slots__ = ("_transport", "gone", "on_gone", "paused", "slow")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.gone = self.slow = self.paused = False
        self.on_gone: Callable[[], None] | None = None

    def lost(self) -> None:
        """Record that the connection is lost."""
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()

    def break_slow(self) -> None:
        """Abort the connection and drop its unsent bytes, because the client does not read."""
        self.slow = True
        self._transport.abort()

    def write_part(self, data: bytes) -> bool:
        """Write a part of a response that was started without a length.

        Returns False if the buffer is full. Writes nothing while the connection closes: uvloop would raise,
        and the loss is reported soon.
        """
        if self.paused:
            return False
        if data and not self._transport.is_closing():  # an empty chunk would end the response
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True
