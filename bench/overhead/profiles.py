"""Profiles of a process, sampled by py-spy.

Samples are of wall time. The processes of a way share a core, so a system call that wakes another process
includes that process's time and appears several times as expensive as it is.
"""

import asyncio
import itertools
from collections import Counter
from pathlib import Path

from overhead.load import exchange_all
from overhead.machine import EngineRoute
from overhead.measures import CONNECTIONS, SETTLE_S, streaming
from overhead.programs import PY_SPY

RATE_HZ = 200
LARGEST = 3


async def of_tokens(way: EngineRoute, name: str, streams: int, window_s: float, folder: Path) -> list[str]:
    """Return the largest costs while `streams` answers stream."""
    async with streaming(way, streams):
        await asyncio.sleep(SETTLE_S)
        return await _sampled(way.pids[name], window_s, folder / f"{name}-tokens.txt")


async def of_requests(way: EngineRoute, name: str, window_s: float, folder: Path) -> list[str]:
    """Return the largest costs with one-token JSON requests."""
    load = asyncio.create_task(exchange_all(way.url, itertools.count(), CONNECTIONS, stream=False))
    await asyncio.sleep(SETTLE_S)
    try:
        return await _sampled(way.pids[name], window_s, folder / f"{name}-requests.txt")
    finally:
        load.cancel()
        await asyncio.wait([load])
        await asyncio.sleep(SETTLE_S)


async def _sampled(pid: int, window_s: float, out: Path) -> list[str]:
    sampler = await asyncio.create_subprocess_exec(
        *(
            PY_SPY.installed(),
            "record",
            "--pid",
            str(pid),
            "--duration",
            str(round(window_s)),
            "--nonblocking",
        ),
        *("--rate", str(RATE_HZ), "--format", "raw", "--output", out),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await sampler.communicate()
    if sampler.returncode != 0:
        raise SystemExit(f"py-spy: {output.decode(errors='replace')}")
    return largest_costs(await asyncio.to_thread(out.read_text, errors="replace"))


def largest_costs(stacks: str) -> list[str]:
    """Return functions by their own time, including C code that they call, as shares of busy samples."""
    own: Counter[str] = Counter()
    for line in stacks.splitlines():
        frames, _, samples = line.rpartition(" ")
        if samples.isdigit():  # py-spy does not stop the process, so a name may be read while it changes
            own[_function(frames.split(";")[-1])] += int(samples)
    total = own.total() or 1
    return [f"{100 * samples / total:4.1f} %  {name}" for name, samples in own.most_common(LARGEST)]


def _function(frame: str) -> str:
    """Return `name (path/file.py:12)` without the line number and the beginning of the path."""
    name, _, place = frame.partition(" (")
    path = place.rstrip(")").rpartition(":")[0]
    return f"{name} ({'/'.join(path.split('/')[-2:])})" if path else frame
