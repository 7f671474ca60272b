"""Injects faults into a pool of real processes, one at a time, and waits for recovery after each."""

import asyncio
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from live.fault_proxy import FaultProxy
from live.pool import REPLICA, Kind, LivePool
from live.process import BIN, Process
from patience import until

from soak.traffic import SoakTraffic

PAUSE_S = 3.0
"""Mean pause between two faults, after the pool has recovered."""

LONGEST_S = 20.0
"""Longest fault, longer than a session's keepalive."""


@dataclass(slots=True)
class FaultInjector:
    """Injects faults into one pool. counts: injected faults by kind."""

    pool: LivePool
    proxy: FaultProxy
    traffic: SoakTraffic
    random: Random
    counts: dict[str, int] = field(default_factory=dict)

    async def run(self, until_s: float) -> None:
        """Inject faults until a time."""
        while (left_s := until_s - time.monotonic()) > PAUSE_S:
            await asyncio.sleep(min(self.random.expovariate(1 / PAUSE_S), left_s))
            kind = self.random.choice(possible_faults(self.pool.folder))
            lasts_s = min(self.random.random() ** 2 * LONGEST_S, max(left_s - PAUSE_S, 1.0))
            self.counts[kind] = self.counts.get(kind, 0) + 1
            await FAULTS[kind](self, lasts_s)
            await asyncio.to_thread(self._wait_until_ready)

    def replica(self) -> str:
        """Draw a replica."""
        return self.random.choice(self.pool.replicas)

    def process(self) -> tuple[Kind, str]:
        """Draw a process of a replica."""
        return self.random.choice(REPLICA), self.replica()

    def router(self) -> str:
        """Draw a router."""
        return self.random.choice(self.traffic.routers)

    def _wait_until_ready(self) -> None:
        for router in self.traffic.routers:
            until(
                lambda router=router: self.pool.ready_replicas(router) == set(self.pool.replicas),  # type: ignore[misc]
                f"every replica in service of {router}",
                interval_s=0.1,
            )


Fault = Callable[[FaultInjector, float], Awaitable[None]]


async def _kill(injector: FaultInjector, lasts_s: float) -> None:
    kind, name = injector.process()
    await asyncio.to_thread(injector.pool.kill, kind, name)
    await asyncio.sleep(lasts_s)
    await asyncio.to_thread(injector.pool.start, kind, name)


async def _kill_router(injector: FaultInjector, lasts_s: float) -> None:
    name = injector.router()
    injector.traffic.lost[name] = float("inf")
    await asyncio.to_thread(injector.pool.kill, "router", name)
    await asyncio.sleep(min(lasts_s, PAUSE_S))
    await asyncio.to_thread(injector.pool.start, "router", name)
    injector.traffic.lost[name] = time.monotonic()


async def _stop_process(injector: FaultInjector, lasts_s: float) -> None:
    kind, name = injector.process()
    with injector.pool.frozen(kind, name):
        await asyncio.sleep(lasts_s)


async def _stop_router(injector: FaultInjector, lasts_s: float) -> None:
    with injector.pool.frozen("router", injector.router()):
        await asyncio.sleep(lasts_s)


async def _drain(injector: FaultInjector, lasts_s: float) -> None:
    """Send SIGTERM to a sidecar, and start a new one when it has ended."""
    name = injector.replica()
    process = injector.pool.ask_to_stop("sidecar", name)
    await asyncio.to_thread(process.exit_code)
    await asyncio.to_thread(injector.pool.start, "sidecar", name)


def _network_fault(fault: Callable[[FaultProxy, str], AbstractContextManager[None]]) -> Fault:
    """Return a network fault between routers and a sidecar, or between a sidecar and its engine."""

    async def inject(injector: FaultInjector, lasts_s: float) -> None:
        what = " ".join(injector.process())
        with fault(injector.proxy, what):
            await asyncio.sleep(lasts_s)

    return inject


async def _step_clock(injector: FaultInjector, lasts_s: float) -> None:
    """Set the wall clock of a process an hour ahead or behind for a while."""
    kind, name = injector.process()
    clock = _clock_of(f"{kind} {name}", injector.pool.folder)
    clock.write_text(injector.random.choice(("+3600", "-3600")))
    await asyncio.sleep(lasts_s)
    clock.write_text("+0")


async def _fill_disk(injector: FaultInjector, lasts_s: float) -> None:
    """Fill the disk that has logs and sockets."""
    filler = injector.pool.folder / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                os.write(file.fileno(), bytes(1 << 16))
        except OSError:
            await asyncio.sleep(lasts_s)
    filler.unlink()


FAULTS: dict[str, Fault] = {
    "kill -9": _kill,
    "kill -9 of a router": _kill_router,
    "SIGSTOP": _stop_process,
    "SIGSTOP of a router": _stop_router,
    "SIGTERM of a sidecar": _drain,
    "delay": _network_fault(lambda proxy, what: proxy.harm(what, "latency", latency=300, jitter=200)),
    "bandwidth": _network_fault(lambda proxy, what: proxy.harm(what, "bandwidth", rate=8)),
    "pieces": _network_fault(
        lambda proxy, what: proxy.harm(what, "slicer", average_size=50, size_variation=40, delay=10)
    ),
    "half open": _network_fault(lambda proxy, what: proxy.half_open(what)),
    "reset": _network_fault(lambda proxy, what: proxy.harm(what, "reset_peer", timeout=0)),
    "cut": _network_fault(lambda proxy, what: proxy.cut(what)),
    "disk full": _fill_disk,
    "clock step": _step_clock,
}

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
"""Library of Debian's package `faketime`; None if it is not installed."""


def start(name: str, command: list[str], log: Path) -> Process:
    """Start a process, with a wall clock that can be stepped if `faketime` is installed."""
    if FAKETIME is None:
        return Process(name, command, log)
    clock = _clock_of(name, log.parent)
    clock.write_text("+0")
    variables = {
        "LD_PRELOAD": FAKETIME,
        "FAKETIME_TIMESTAMP_FILE": clock,
        "FAKETIME_CACHE_DURATION": 1,
        "FAKETIME_DONT_FAKE_MONOTONIC": 1,
    }
    pairs = [f"{name}={value}" for name, value in variables.items()]
    return Process(name, ["/usr/bin/env", *pairs, str(BIN / command[0]), *command[1:]], log)


def _clock_of(name: str, folder: Path) -> Path:
    return folder / f"{name.replace(' ', '-')}.clock"


def possible_faults(folder: Path) -> list[str]:
    """Return the faults that this machine can inject into a pool with its logs in a folder."""
    without = {"disk full": not folder.is_mount(), "clock step": FAKETIME is None}
    return [kind for kind in FAULTS if not without.get(kind)]


def small_disk(folder: Path) -> AbstractContextManager[object]:
    """Mount a disk of 32 MiB at a folder if that is allowed; unmount it at the end."""
    if os.geteuid() != 0:
        return nullcontext()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", folder], check=False)
    return _Mounted(folder) if mounted.returncode == 0 else nullcontext()


class _Mounted(AbstractContextManager[object]):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", self._folder], check=True)
