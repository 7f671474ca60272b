"""The processes of a replica, `penstock-engine` and `penstock-sidecar`, and their logs."""

import asyncio
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from patience import PATIENCE_S

ADDRESSES = re.compile(r"(\w+)=(127\.0\.0\.1:\d+)")
"""Addresses in the log line of a ready process, by name."""


@asynccontextmanager
async def started(module: str, *flags: str | Path) -> AsyncIterator[Process]:
    command = [sys.executable, "-m", module, *map(str, flags)]
    process = await asyncio.create_subprocess_exec(*command, stderr=PIPE, stdout=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def logged(process: Process, event: str) -> str:
    """Return the first line of this event; earlier lines are skipped."""
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        while line := (await process.stderr.readline()).decode():
            if re.search(rf'event="?{event}', line):
                return line
    raise AssertionError(f"the process ended before it logged {event}")


async def ready(process: Process, field: str = "address") -> str:
    found = re.search(rf"\b{field}=(127\.0\.0\.1:\d+)", await logged(process, "ready"))
    assert found is not None
    return found[1]


@asynccontextmanager
async def engine(
    pool: Path, socket_path: Path, *more: str | Path, port: str = "0"
) -> AsyncIterator[tuple[Process, str]]:
    flags = ("-f", pool, "--port", port, "--telemetry", socket_path, *more)
    async with started("penstock_simulator.main", *flags) as process:
        yield process, await ready(process)


def sidecar(pool: Path, address: str, *more: str | Path) -> list[str | Path]:
    return ["-f", pool, "--name", "r0", "--listen", "127.0.0.1:0", "--engine", f"http://{address}", *more]
