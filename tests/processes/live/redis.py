"""A real Redis, which tests kill."""

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from patience import eventually, until
from penstock_routing.applications.shared_limits import SharedLimits
from penstock_routing.replicas.shared_placements import SharedPlacements

PROGRAM = shutil.which("redis-server", path=str(Path(sys.executable).parent)) or shutil.which("redis-server")
"""The environment's own, where it has one for this machine; else the machine's."""


class RedisServer:
    """On loopback, on a port that it keeps when it is started again. Keeps nothing on disk."""

    def __init__(self, folder: Path, password: str = "") -> None:
        self._log, self._password = folder / "redis.log", password
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{f':{self._password}@' if self._password else ''}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        assert PROGRAM is not None, (
            "there is no redis-server: install one (Debian: redis-server, macOS: redis)"
        )
        command = [
            PROGRAM,
            "--bind",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        if self._password:
            command += ["--requirepass", self._password]
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, cwd=self._log.parent)
        until(self._listens, "redis listening")

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _listens(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0


class SharingRouter(Protocol):
    """A router's part that shares state through Redis."""

    @property
    def shared(self) -> SharedLimits | SharedPlacements: ...

    async def run(self) -> None: ...


@asynccontextmanager
async def connected(*routers: SharingRouter) -> AsyncIterator[None]:
    """Run the routers until the end of the block, which begins when all are connected."""
    tasks = [asyncio.create_task(router.run()) for router in routers]
    try:
        await eventually(lambda: all(router.shared.connected for router in routers))
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
