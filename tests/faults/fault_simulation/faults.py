"""Faults of one run: what goes wrong, when, and for how long. All are over when `until_s` has passed.

Each fault begins at a drawn time and then waits for a drawn number of turns of the event loop, so that it may
fall between any two awaits of what happens at that moment.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol

from fault_simulation.hosts import Host, Severable
from fault_simulation.network import Network, Weather

MOST_TURNS = 12
"""Turns of the loop that a fault may wait for beyond its time."""


class Faulty(Protocol):
    """What faults happen to."""

    network: Network
    replicas: tuple[str, ...]

    def hosts_of(self, replica: str) -> tuple[Host, Host]:
        """Return the hosts of a replica's sidecar and engine."""

    def start_engine(self, replica: str) -> None:
        """Start a replica's engine again."""

    def start_sidecar(self, replica: str) -> None:
        """Start a replica's sidecar again."""

    def hang(self, replica: str, lasts_s: float) -> None:
        """Let a replica's engine compute nothing for so long."""

    def unwell(self, replica: str, lasts_s: float) -> None:
        """Note that a fault has begun at a replica, and lasts so long."""

    async def restart_router(self, after_s: float) -> None:
        """Kill the router, and start another."""


Fault = Callable[[Faulty, Random, str, float], Awaitable[None]]
"""Happens to a replica, and is over after so many seconds."""


def weather_of(random: Random) -> Weather:
    """Draw how the network is. One run in four has none of it."""
    if random.random() < 0.25:
        return Weather()

    def share(most: float) -> float:
        return random.random() * most if random.random() < 0.5 else 0.0

    return Weather(
        delay_s=random.choice((0.0002, 0.0005, 0.005)),
        slow_share=share(0.05),
        cut_share=share(0.5),
        lost=share(0.5),
        doubled=share(0.3),
        late=share(0.3),
        torn=share(0.1),
    )


async def inject(faulty: Faulty, random: Random, until_s: float, most: int) -> None:
    """Let up to `most` faults happen, each within `until_s` from now."""
    async with asyncio.TaskGroup() as group:
        for _ in range(random.randint(0, most)):
            group.create_task(_happen(faulty, random, until_s))


async def _happen(faulty: Faulty, random: Random, until_s: float) -> None:
    begin_s = random.random() * until_s
    lasts_s = random.random() ** 2 * (until_s - begin_s)
    kind, replica, turns = random.choice(KINDS), random.choice(faulty.replicas), random.randrange(MOST_TURNS)
    await asyncio.sleep(begin_s)
    for _ in range(turns):
        await asyncio.sleep(0)
    faulty.network.faults[kind] += 1
    faulty.unwell(replica, lasts_s)
    await FAULTS[kind](faulty, random, replica, lasts_s)


async def _kill_sidecar(faulty: Faulty, random: Random, replica: str, lasts_s: float) -> None:
    host, _ = faulty.hosts_of(replica)
    if host.alive:
        await host.kill()
        await asyncio.sleep(lasts_s)
        faulty.start_sidecar(replica)


async def _kill_engine(faulty: Faulty, random: Random, replica: str, lasts_s: float) -> None:
    _, host = faulty.hosts_of(replica)
    if host.alive:
        await host.kill()
        await asyncio.sleep(lasts_s)
        faulty.start_engine(replica)


async def _lose_node(faulty: Faulty, random: Random, replica: str, lasts_s: float) -> None:
    """Sidecar and engine are gone without a word, and come back as new processes."""
    sidecar, engine = faulty.hosts_of(replica)
    if sidecar.alive and engine.alive:
        await sidecar.kill(silent=True)
        await engine.kill(silent=True)
        await asyncio.sleep(lasts_s)
        faulty.start_engine(replica)
        faulty.start_sidecar(replica)


async def _reset(faulty: Faulty, random: Random, replica: str, lasts_s: float) -> None:
    """A connection of the replica is reset: one to the router, or one between sidecar and engine."""
    connections: list[Severable] = [c for host in faulty.hosts_of(replica) for c in host.connections]
    if connections:
        random.choice(connections).sever()


async def _half_open(faulty: Faulty, random: Random, replica: str, lasts_s: float) -> None:
    """A connection is gone for the replica; its peer finds out late."""
    sidecar, _ = faulty.hosts_of(replica)
    if sidecar.connections:
        random.choice(list(sidecar.connections)).sever(silent=True)


async def _partition(faulty: Faulty, random: Random, replica: str, lasts_s: float) -> None:
    sidecar, _ = faulty.hosts_of(replica)
    faulty.network.cut_off("router", sidecar.name)
    await asyncio.sleep(lasts_s)
    faulty.network.heal("router", sidecar.name)


async def _partition_engine(faulty: Faulty, random: Random, replica: str, lasts_s: float) -> None:
    sidecar, engine = faulty.hosts_of(replica)
    faulty.network.cut_off(sidecar.name, engine.name)
    await asyncio.sleep(lasts_s)
    faulty.network.heal(sidecar.name, engine.name)


async def _hang_engine(faulty: Faulty, random: Random, replica: str, lasts_s: float) -> None:
    faulty.hang(replica, lasts_s)
    await asyncio.sleep(lasts_s)


async def _kill_router(faulty: Faulty, random: Random, replica: str, lasts_s: float) -> None:
    await faulty.restart_router(lasts_s)


FAULTS: dict[str, Fault] = {
    "sidecar killed": _kill_sidecar,
    "engine killed": _kill_engine,
    "node lost": _lose_node,
    "connection reset": _reset,
    "connection half open": _half_open,
    "router cut off": _partition,
    "engine cut off": _partition_engine,
    "engine hung": _hang_engine,
    "router killed": _kill_router,
}
KINDS = (*FAULTS, *[kind for kind in FAULTS if kind != "router killed"] * 2)
"""Each kind twice more than the loss of the router, which ends all streams."""
