"""One run: a pool, its clients and its faults, all drawn from one seed."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fault_simulation.clients import Answer, plan_of, run_client
from fault_simulation.faults import inject, weather_of
from fault_simulation.hosts import HOST, Host, follow_tasks
from fault_simulation.invariants import (
    broken_answer,
    broken_bounds,
    broken_rest,
    broken_service,
    orphans_of,
)
from fault_simulation.network import Network
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
from penstock_routing.replicas.replica_set import ReplicaSet

BEGIN_S = 2.0
"""Until all processes have found each other."""

FAULTS_S = 8.0
"""Clients come, and faults happen, within this time."""

MOST_FAULTS = 6

ANSWERED_S = 60.0
"""After the last fault every client has its answer within this."""

SETTLE_S = 25.0
"""After the last answer everything is at rest within this: probes, backoffs, keepalive."""

SETTLE_EACH_S = 0.5

RECOVERY_S = 15.0
"""A replica counts as well so long after its last fault."""

CHECK_S = 0.1
"""How often bounds are checked."""

CANCELLED_S = 1.0
"""A sidecar carries no request that its router gave up so long ago, nor does an engine for its sidecar."""


@dataclass(slots=True)
class World:
    """The hosts of one run, and what is seen of them.

    crashes: what no process has handled. unordered: output that came before a verdict.
    ready: since when the router has had each replica in service, by name.
    unwell_until_s: until when each replica is not counted as well.
    router_lost_s: when the router was killed.
    """

    random: Random
    pool: Pool
    network: Network
    replicas: tuple[str, ...]
    newer: tuple[bool, bool]
    clients: Host
    router: RouterProcess
    engines: dict[str, EngineProcess] = field(default_factory=dict)
    sidecars: dict[str, SidecarProcess] = field(default_factory=dict)
    crashes: list[str] = field(default_factory=list)
    unordered: list[str] = field(default_factory=list)
    ready_since_s: dict[str, float] = field(default_factory=dict)
    unwell_until_s: dict[str, float] = field(default_factory=dict)
    router_lost_s: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Start all processes."""
        for name in self.replicas:
            self.start_engine(name)
            self.start_sidecar(name)
        self.start_router()

    def start_engine(self, replica: str) -> None:
        """Start a replica's engine, again where there was one."""
        host = self._host(f"{replica}-engine")
        self.engines[replica] = start_engine(self.network, host, replica, self.pool)

    def start_sidecar(self, replica: str) -> None:
        """Start a replica's sidecar, again where there was one."""
        host = self._host(f"{replica}-sidecar")
        newer = self.newer[0]
        self.sidecars[replica] = start_sidecar(self.network, host, replica, self.pool, newer=newer)

    def start_router(self) -> None:
        """Start the router, again where there was one."""
        self.router = start_router(
            self.network,
            self._host("router"),
            self.replicas,
            self.pool,
            random=Random(self.random.random()),
            watch=self._watch,
            changed=self._links_changed,
            newer=self.newer[1],
        )

    async def restart_router(self, after_s: float) -> None:
        """Kill the router, and start another."""
        if self.router.host.alive:
            self.router_lost_s.append(asyncio.get_running_loop().time())
            await self.router.host.kill()
            self.ready_since_s.clear()
            await asyncio.sleep(after_s)
            self.start_router()

    def hosts_of(self, replica: str) -> tuple[Host, Host]:
        """Return the hosts of a replica's sidecar and engine."""
        return self.sidecars[replica].host, self.engines[replica].host

    def hang(self, replica: str, lasts_s: float) -> None:
        """Let a replica's engine compute nothing for so long."""
        self.engines[replica].truth.until_s = asyncio.get_running_loop().time() + lasts_s

    def unwell(self, replica: str, lasts_s: float) -> None:
        """Note that a fault has begun at a replica, and lasts so long."""
        until_s = asyncio.get_running_loop().time() + lasts_s + RECOVERY_S
        self.unwell_until_s[replica] = max(self.unwell_until_s.get(replica, 0.0), until_s)

    def well(self, since_s: float) -> list[str]:
        """Return the replicas that are well and have been in service since then."""
        now_s = asyncio.get_running_loop().time()
        return [
            name
            for name, ready_s in self.ready_since_s.items()
            if ready_s <= since_s and self.unwell_until_s.get(name, 0.0) < now_s
        ]

    def orphans(self) -> Iterator[str]:
        """Yield what replicas that no fault has touched for long carry, and nobody before them does."""
        now_s = asyncio.get_running_loop().time()
        for link in self.router.replica_set.links:
            if self.unwell_until_s.get(link.name, 0.0) < now_s:
                yield from orphans_of(link, self.sidecars[link.name], self.engines[link.name])

    def _host(self, name: str) -> Host:
        return Host(name, self.random.random() * 1e5)

    def _links_changed(self, replica_set: ReplicaSet) -> None:
        now_s = asyncio.get_running_loop().time()
        since_s = self.ready_since_s
        ready = [link.name for link in replica_set.links if link.state == "ready"]
        self.ready_since_s = {name: since_s.get(name, now_s) for name in ready}

    def _watch(self, method: str) -> Callable[[Any], None]:
        """Return what sees whether verdicts come before output, in one session."""
        accepted: set[int] = set()

        def see(message: Any) -> None:
            for event in message.events:
                kind = event.WhichOneof("kind")
                if kind in ("admitted", "best_effort"):
                    accepted.add(event.id)
                elif kind in ("output", "finished") and event.id not in accepted:
                    self.unordered.append(f"{kind} of {event.id} before its verdict")

        return see if method == "Session" else lambda message: None


@dataclass(slots=True)
class Result:
    """What one run has shown. broken: invariants, with what was seen. moves: of streams, by outcome."""

    seed: int
    answers: list[Answer]
    faults: Counter[str]
    broken: list[str]
    moves: Counter[str]
    turns: int
    virtual_s: float


def simulate(seed: int) -> Result:
    """Run one seed."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_run(seed))


async def _run(seed: int) -> Result:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    follow_tasks(loop)
    world = _world(Random(seed), loop)
    loop.set_exception_handler(lambda _, context: _note_crash(world, context))
    random, network = world.random, world.network
    world.start()
    await asyncio.sleep(BEGIN_S)
    answers = [Answer(plan_of(n, random, FAULTS_S), loop.time) for n in range(random.randint(2, 10))]
    broken: list[str] = []
    checking = asyncio.create_task(_check(world, broken))
    running = [world.clients.spawn(_serve(world, answer, broken)) for answer in answers]
    await inject(world, random, FAULTS_S, MOST_FAULTS)
    await asyncio.wait(running, timeout=ANSWERED_S)
    left = await _left_at_rest(world)
    checking.cancel()
    broken += [*_broken(world, answers), *left]
    moves = _moves(world.router)
    result = Result(seed, answers, +network.faults, broken, moves, loop.turns, loop.time())
    await _end(world)
    return result


def _world(random: Random, loop: VirtualLoop) -> World:
    network = loop.network = Network(random, weather_of(random))
    policy, kv_tokens = random.choice(("vllm", "sarathi", "slos-serve")), random.choice((2_048, 40_000))
    pool = pool_of(policy, random.choice((0, 1, 2, 2)), kv_tokens)
    replicas = ("r0", "r1", "r2")[: random.choice((1, 2, 3, 3))]
    newer = random.random() < 0.2, random.random() < 0.2
    return World(random, pool, network, replicas, newer, Host("clients"), router=None)  # type: ignore[arg-type]


async def _serve(world: World, answer: Answer, broken: list[str]) -> None:
    """Run one client. What it gets instead of its answer has to have a cause when it comes."""
    await run_client(answer.plan, ROUTER, answer)
    lost = [at_s for at_s in world.router_lost_s if answer.sent_s <= at_s or not answer.status]
    if not answer.left and not lost:
        broken += broken_service(answer, world.well(answer.ended_s - 1.0), world.pool)


async def _check(world: World, broken: list[str]) -> None:
    orphans_s: dict[str, float] = {}
    while True:
        await asyncio.sleep(CHECK_S)
        now_s = asyncio.get_running_loop().time()
        orphans_s = {orphan: orphans_s.get(orphan, now_s) for orphan in world.orphans()}
        if len(broken) < 10:
            broken += [f"10 {orphan}" for orphan, at_s in orphans_s.items() if now_s - at_s > CANCELLED_S]
            broken += broken_bounds(world.router, list(world.sidecars.values()), list(world.engines.values()))


def _broken(world: World, answers: list[Answer]) -> Iterator[str]:
    yield from (f"8 {crash}" for crash in world.crashes)
    yield from (f"9 {line}" for line in world.unordered)
    for answer in answers:
        lost = any(answer.sent_s <= at_s <= answer.ended_s + 1.0 for at_s in world.router_lost_s)
        yield from broken_answer(answer, router_lost=lost or not answer.sent_s)


async def _left_at_rest(world: World) -> list[str]:
    """Return what has not returned to zero in time."""
    give_up_s = asyncio.get_running_loop().time() + SETTLE_S
    while True:
        await asyncio.sleep(SETTLE_EACH_S)
        left = list(broken_rest(world.router, list(world.sidecars.values()), list(world.engines.values())))
        if not left or asyncio.get_running_loop().time() >= give_up_s:
            return left


def _moves(router: RouterProcess) -> Counter[str]:
    moves: Counter[str] = Counter()
    for metric in router.app.metrics.moves.moves.collect():
        for sample in metric.samples:
            if sample.name.endswith("_total"):
                moves[f"{sample.labels['cause']}, {sample.labels['outcome']}"] += int(sample.value)
    return +moves


async def _end(world: World) -> None:
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
