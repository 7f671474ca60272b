"""The client's side of an exchange: whether it is still there, and how to be rid of it.

While its answer is worked on, a task listens for its going. When it goes, the work is cancelled where it
stands, which is how everything behind it learns: each `finally` on the way takes back what it had asked for.
Once an answer is complete the client may close as it likes; `answered` says so.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from penstock_runtime.asgi import ClientGone, Receive, Scope
from penstock_runtime.http_protocol import ABORT


class Client:
    """Use as `async with`: raises ClientGone out of the block when the client goes before it was answered."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._abort: Callable[[], None] | None = scope.get("extensions", {}).get(ABORT)
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

    def answered(self) -> None:
        """Its answer is complete with what is written next."""
        self._watch.cancel()

    def abort(self) -> None:
        """Break the connection at once, whatever waits to be written."""
        if self._abort is not None:
            self._abort()

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()
