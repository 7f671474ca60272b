"""The work for one client, which is cancelled when the client disconnects.

Each step releases its resources in `finally`, so nothing else needs to be notified. After a complete answer
the client may disconnect.
"""

import asyncio
from types import TracebackType
from typing import Self

from penstock_runtime.http_request import ClientGone, HttpRequest


class ClientScope:
    """Use as `async with`: raises ClientGone from the block if the client disconnects before the answer."""

    def __init__(self, http: HttpRequest) -> None:
        self.http = http
        self._scope = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        self.http.on_gone = self._cancel
        if self.http.gone:
            self._cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.answered()
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            raise ClientGone from None

    def answered(self) -> None:
        """Allow the client to disconnect from now on: the next write completes the answer."""
        self.http.on_gone = None

    def _cancel(self) -> None:
        self._scope.reschedule(0.0)
