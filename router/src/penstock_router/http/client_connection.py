"""The client's connection: whether the client is still there, and how to close it.

While its answer is worked on, a task listens for its going. When it goes, the work is cancelled where it
stands, which is how everything behind it learns: each `finally` on the way takes back what it had asked for.
Once an answer is complete the client may close as it likes; `answered` says so.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog
from penstock_runtime.asgi import ClientGone, Receive, Scope
from penstock_runtime.http_protocol import ABORT, STALLED

log = structlog.get_logger()


class ClientConnection:
    """Use as `async with`: raises ClientGone out of the block when the client goes before it was answered."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._extensions = scope.get("extensions", {})
        self._abort: Callable[[], None] | None = self._extensions.get(ABORT)
        self._gone = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a client is served by a task")
        self._task, self._cancelling = task, task.cancelling()
        self._watch = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        if self._gone and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise ClientGone from None

    @property
    def stalled(self) -> bool:
        """Whether its connection was broken because it took nothing of its answer."""
        return STALLED in self._extensions

    def answered(self) -> None:
        """Its answer is complete with what is written next."""
        self._watch.cancel()

    def abort(self) -> None:
        """Break the connection at once, whatever waits to be written."""
        if self._abort is not None:
            self._abort()

    async def _listen(self) -> None:
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        except Exception:  # nobody would hear of its going any more
            log.exception("client not listened to")
        self._gone = True
        self._task.cancel()
