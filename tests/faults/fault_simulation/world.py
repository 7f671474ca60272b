"""One run: a pool, its clients and its faults, all drawn from one seed."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fault_simulation.clients import Answer, plan_of, run_client
from fault_simulation.hosts import HOST, Host, follow_tasks
from fault_simulation.invariants import broken_answer, broken_rest
from fault_simulation.network import Network, Weather
from fault_simulation.processes import (
    ROUTER,
    EngineProcess,
    RouterProcess,
    SidecarProcess,
    pool_of,
    start_engine,
    start_router,
    start_sidecar,
)
from fault_simulation.virtual_loop import VirtualLoop
from penstock_pool import Pool


@dataclass(slots=True)
class World:
    """The hosts of one run, and what has gone wrong by itself (`crashes`)."""

    random: Random
    pool: Pool
    network: Network
    replicas: tuple[str, ...]
    clients: Host
    engines: dict[str, EngineProcess] = field(default_factory=dict)
    sidecars: dict[str, SidecarProcess] = field(default_factory=dict)
    router: RouterProcess | None = None
    crashes: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Start all processes."""
        for name in self.replicas:
            self.start_engine(name)
            self.start_sidecar(name)
        self.router = start_router(
            self.network, self._host("router"), self.replicas, self.pool, Random(self.random.random())
        )

    def start_engine(self, replica: str) -> None:
        """Start a replica's engine, again where there was one."""
        self.engines[replica] = start_engine(
            self.network, self._host(f"{replica}-engine"), replica, self.pool
        )

    def start_sidecar(self, replica: str) -> None:
        """Start a replica's sidecar, again where there was one."""
        self.sidecars[replica] = start_sidecar(
            self.network, self._host(f"{replica}-sidecar"), replica, self.pool
        )

    def _host(self, name: str) -> Host:
        return Host(name, self.random.random() * 1e5)


@dataclass(slots=True)
class Result:
    """What one run has shown. broken: invariants, with what was seen."""

    seed: int
    answers: list[Answer]
    faults: Counter[str]
    broken: list[str]
    turns: int
    virtual_s: float


SETTLE_S = 20.0
"""After the last answer everything is at rest within this."""


def simulate(seed: int) -> Result:
    """Run one seed."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_run(seed))


async def _run(seed: int) -> Result:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    random = Random(seed)
    follow_tasks(loop)
    network = loop.network = Network(random, Weather())
    world = World(random, pool_of("vllm", 2, 40_000), network, ("r0", "r1"), Host("clients"))
    loop.set_exception_handler(lambda _, context: _note_crash(world, context))
    world.start()
    await asyncio.sleep(2.0)
    plans = [plan_of(number, random, 5.0) for number in range(8)]
    answers = [Answer(plan, loop.time) for plan in plans]
    running = [
        world.clients.spawn(run_client(plan, ROUTER, answer))
        for plan, answer in zip(plans, answers, strict=True)
    ]
    await asyncio.wait(running, timeout=60)
    await asyncio.sleep(SETTLE_S)
    broken = list(_broken(world, answers))
    result = Result(seed, answers, network.faults, broken, loop.turns, loop.time())
    await _end(world)
    return result


def _broken(world: World, answers: list[Answer]) -> Iterator[str]:
    assert world.router is not None
    yield from (f"8 {crash}" for crash in world.crashes)
    for answer in answers:
        yield from broken_answer(answer)
    yield from broken_rest(world.router, [*world.sidecars.values()], [*world.engines.values()])


async def _end(world: World) -> None:
    assert world.router is not None
    engines = [engine.host for engine in world.engines.values()]
    sidecars = [sidecar.host for sidecar in world.sidecars.values()]
    for host in [world.clients, world.router.host, *sidecars, *engines]:
        await host.kill()


def _note_crash(world: World, context: dict[str, Any]) -> None:
    """Note what a process has not handled, unless it was killed."""
    error = context.get("exception")
    task = context.get("task") or context.get("future")
    handle = context.get("handle")
    host = HOST.get() if handle is None else handle._context.get(HOST)
    if host is None or host.alive:
        name = "?" if host is None else host.name
        world.crashes.append(f"{name}: {context.get('message')}: {error!r} {task}")
