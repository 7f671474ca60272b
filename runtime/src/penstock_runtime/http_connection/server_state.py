"""App, bounds, open connections and tasks of one HTTP server."""

import asyncio
from email.utils import formatdate
from math import inf
from time import time
from typing import Protocol

from penstock_runtime.http_connection.bounds import HttpBounds
from penstock_runtime.http_request import App, HttpRequest, serve


class OpenConnection(Protocol):
    """A connection, as its server sees it."""

    def shutdown(self) -> None:
        """Close after the response in progress."""


class ServerState:
    """State that all connections of one server share.

    connections: open connections. tasks: running apps.
    closing: whether connections close after their next response.
    ended: set when a connection or an app ends.
    """

    def __init__(self, app: App, bounds: HttpBounds) -> None:
        self.app, self.bounds = app, bounds
        self.connections: dict[OpenConnection, None] = {}  # in order of arrival
        self.tasks: set[asyncio.Task[None]] = set()
        self.closing = False
        self.ended = asyncio.Event()
        self._dated_s, self._date_line = inf, b""

    @property
    def date_line(self) -> bytes:
        """Return the `date` header, whose resolution is a second."""
        now_s = int(time())
        if now_s != self._dated_s:
            self._dated_s = now_s
            self._date_line = f"date: {formatdate(now_s, usegmt=True)}\r\n".encode()
        return self._date_line

    def answer(self, request: HttpRequest) -> None:
        """Start the app in a new task."""
        task = asyncio.get_running_loop().create_task(serve(self.app, request))
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self.ended.set()
