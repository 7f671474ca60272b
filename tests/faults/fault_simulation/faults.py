"""Faults of one run, with their times and durations. All are over when `until_s` has passed.

Each fault begins at a drawn time and then waits for a drawn number of turns of the event loop, so that it may
fall between any two awaits of what happens at that moment.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from fault_simulation.hosts import Host, Severable
from fault_simulation.network import StreamEnd
from fault_simulation.plugin_reports import PluginReports
from fault_simulation.processes import RouterProcess, address_of, sidecar_of
from fault_simulation.scenario import Scenario
from fault_simulation.world import World
from penstock_routing.discovery.endpoints import Condition
from penstock_runtime.grpc.connection import GrpcConnection
from penstock_runtime.serving import FINAL_WRITE_S
from penstock_sidecar.replica.replica import Replica

MOST_TURNS = 12
"""Turns of the loop that a fault may wait for beyond its time."""

MOST_JUMP_S = 60.0
"""Longest jump of a clock."""

READ_EACH_S = 0.05
"""A slow reader reads no more often than this."""

BURSTS_EACH_S = 0.02
"""Shortest time between two bursts of evictions, or of a plug-in's faults."""

MOST_STEPS = 3
"""Steps in a burst in which a plug-in fails."""

Fault = Callable[[World, Random, str, float], Awaitable[None]]
"""A fault of a replica, router or picker, with a duration."""


async def inject(world: World, random: Random, until_s: float, most: int) -> None:
    """Let up to `most` faults happen, each within `until_s` from now."""
    async with asyncio.TaskGroup() as group:
        for _ in range(random.randint(0, most)):
            group.create_task(_happen(world, random, until_s))


async def _happen(world: World, random: Random, until_s: float) -> None:
    begin_s = random.random() * until_s
    lasts_s = random.random() ** 2 * (until_s - begin_s)
    kind, turns = random.choice(kinds_of(world.scenario)), random.randrange(MOST_TURNS)
    await asyncio.sleep(begin_s)
    for _ in range(turns):
        await asyncio.sleep(0)
    if kind in OF_FRONTS:
        front = random.choice(list(world.fronts))
        if world.fronts[front].host.alive:
            world.network.faults[kind] += 1
            await OF_FRONTS[kind](world, random, front, lasts_s)
    elif kind in OF_REDIS:
        if world.redis is not None and world.redis.host.alive:
            world.network.faults[kind] += 1
            await OF_REDIS[kind](world, random, world.redis.host, lasts_s)
    elif world.replicas:
        replica = random.choice(world.replicas)
        world.network.faults[kind] += 1
        if kind not in HARMLESS:
            world.unwell(replica, lasts_s)
        await OF_REPLICAS[kind](world, random, replica, lasts_s)


# Of replicas


async def _kill_sidecar(world: World, random: Random, replica: str, lasts_s: float) -> None:
    host, _ = world.hosts_of(replica)
    if host.alive:
        await host.kill()
        await asyncio.sleep(lasts_s)
        world.start_sidecar(replica)


async def _kill_engine(world: World, random: Random, replica: str, lasts_s: float) -> None:
    _, host = world.hosts_of(replica)
    if host.alive:
        await host.kill()
        await asyncio.sleep(lasts_s)
        world.start_engine(replica)


async def _lose_node(world: World, random: Random, replica: str, lasts_s: float) -> None:
    """Sidecar and engine vanish, and return as new processes."""
    sidecar, engine = world.hosts_of(replica)
    if sidecar.alive and engine.alive:
        await sidecar.kill(silent=True)
        await engine.kill(silent=True)
        await asyncio.sleep(lasts_s)
        world.start_engine(replica)
        world.start_sidecar(replica)


async def _stop_process(world: World, random: Random, replica: str, lasts_s: float) -> None:
    """SIGSTOP: connections stay open without answers."""
    await _stopped(world, random.choice(world.hosts_of(replica)), lasts_s)


async def _jump(world: World, random: Random, replica: str, lasts_s: float) -> None:
    """The clock of a machine jumps, as that of a virtual machine that was suspended."""
    jump_s = random.random() * MOST_JUMP_S
    for host in world.hosts_of(replica):
        host.clock_offset_s += jump_s


async def _reset(world: World, random: Random, replica: str, lasts_s: float) -> None:
    """A connection of the replica is reset: one to the router, or one between sidecar and engine."""
    connections: list[Severable] = [c for host in world.hosts_of(replica) for c in host.connections]
    if connections:
        random.choice(connections).sever()


async def _half_open(world: World, random: Random, replica: str, lasts_s: float) -> None:
    """A connection is gone for the replica; its peer finds out late."""
    sidecar, _ = world.hosts_of(replica)
    if sidecar.connections:
        random.choice(list(sidecar.connections)).sever(silent=True)


async def _partition(world: World, random: Random, replica: str, lasts_s: float) -> None:
    """No packet passes between a router and a machine, or one of its processes."""
    front = random.choice(list(world.fronts))
    names = [host.name for host in world.hosts_of(replica)]
    cut_off = random.choice((names, names[:1], names[1:]))
    for name in cut_off:
        world.network.cut_off(front, name)
    await asyncio.sleep(lasts_s)
    for name in cut_off:
        world.network.heal(front, name)


async def _partition_engine(world: World, random: Random, replica: str, lasts_s: float) -> None:
    sidecar, engine = world.hosts_of(replica)
    world.network.cut_off(sidecar.name, engine.name)
    await asyncio.sleep(lasts_s)
    world.network.heal(sidecar.name, engine.name)


async def _hang_engine(world: World, random: Random, replica: str, lasts_s: float) -> None:
    world.engines[replica].truth.until_s = asyncio.get_running_loop().time() + lasts_s
    await asyncio.sleep(lasts_s)


async def _drain(world: World, random: Random, replica: str, lasts_s: float) -> None:
    """A user on the replica's machine drains it, and then resumes."""
    sidecar = world.sidecars[replica]
    if sidecar.host.alive:
        draining = sidecar.host.spawn(sidecar.replica.drain(random.choice((None, lasts_s))))
        await asyncio.sleep(lasts_s)
        if sidecar.host.alive:
            await asyncio.wait({draining, sidecar.host.spawn(_resume(sidecar.replica))})


async def _resume(replica: Replica) -> None:
    """As a task, which a process that is stopped begins after the drain that it was asked for before."""
    replica.resume()


async def _replace(world: World, random: Random, replica: str, lasts_s: float) -> None:
    """A rollout: a new replica replaces an old one, before it ends or after."""
    first = random.random() < 0.5
    if first:
        world.add_replica()
    await world.retire(replica, lasts_s)
    if not first:
        world.add_replica()


async def _not_ready(world: World, random: Random, replica: str, lasts_s: float) -> None:
    world.cluster.publish(replica, sidecar_of(replica), Condition.NOT_READY)
    await asyncio.sleep(lasts_s)
    if replica in world.replicas:
        world.cluster.publish(replica, sidecar_of(replica))


async def _withdraw(world: World, random: Random, replica: str, lasts_s: float) -> None:
    world.cluster.withdraw(replica)
    await asyncio.sleep(lasts_s)
    if replica in world.replicas:
        world.cluster.publish(replica, sidecar_of(replica))


async def _read_slowly(world: World, random: Random, replica: str, lasts_s: float) -> None:
    """One end of a session reads now and then only: a router's, or the sidecar's."""
    sidecar, _ = world.hosts_of(replica)
    ends = [each for each in sidecar.connections if isinstance(each, StreamEnd)]
    sessions = [end for end in ends if isinstance(end.protocol, GrpcConnection)]
    if not sessions:
        return
    end = random.choice(sessions)
    reader = end.peer if random.random() < 0.7 else end
    until_s = asyncio.get_running_loop().time() + lasts_s
    while (left_s := until_s - asyncio.get_running_loop().time()) > 0:
        reader.pause_reading()
        await asyncio.sleep(random.random() * left_s + READ_EACH_S)
        reader.resume_reading()
        await asyncio.sleep(0)


async def _evict(world: World, random: Random, replica: str, lasts_s: float) -> None:
    """Bursts of evictions: free blocks are reused, and lose their cached content."""
    until_s = asyncio.get_running_loop().time() + lasts_s
    while True:
        engine = world.engines.get(replica)
        cached = None if engine is None else engine.loop.state.cached
        if cached is None:
            return
        pool = cached.cache.pool
        pool.release(pool.take(random.randint(0, pool.free_blocks)))
        left_s = until_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            return
        await asyncio.sleep(random.random() * left_s + BURSTS_EACH_S)


async def _empty_cache(world: World, random: Random, replica: str, lasts_s: float) -> None:
    cached = world.engines[replica].loop.state.cached
    if cached is not None:
        cached.reset()


async def _fail_plugin(world: World, random: Random, replica: str, lasts_s: float) -> None:
    """The plug-in's own code fails in some steps; before the next it reads all requests again."""
    until_s = asyncio.get_running_loop().time() + lasts_s
    while replica in world.engines and isinstance(reports := world.engines[replica].reports, PluginReports):
        reports.miss(random.randint(1, MOST_STEPS))
        left_s = until_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            return
        await asyncio.sleep(random.random() * left_s + BURSTS_EACH_S)


# Of routers and pickers


async def _kill_front(world: World, random: Random, front: str, lasts_s: float) -> None:
    with world.front_unwell(front, lost=True):
        await world.end_front(front)
        await asyncio.sleep(lasts_s)
        world.start_front(front)


async def _stop_front(world: World, random: Random, front: str, lasts_s: float) -> None:
    with world.front_unwell(front):
        await _stopped(world, world.fronts[front].host, lasts_s)


async def _jump_front(world: World, random: Random, front: str, lasts_s: float) -> None:
    with world.front_unwell(front):
        world.fronts[front].host.clock_offset_s += random.random() * MOST_JUMP_S


async def _replace_front(world: World, random: Random, front: str, lasts_s: float) -> None:
    """SIGTERM: it takes no more connections, its answers end within a time, and another one comes."""
    process = world.fronts[front]
    with world.front_unwell(front):
        if isinstance(process, RouterProcess):
            process.app.draining = True
        world.network.close(address_of(process.host))
        await asyncio.wait({process.host.spawn(process.server.stop(lasts_s))})
        await asyncio.sleep(FINAL_WRITE_S)  # what it has written arrives
        if process.host.alive:
            await world.end_front(front)
            world.start_front(front)


# Of what routers share


async def _kill_redis(world: World, random: Random, redis: Host, lasts_s: float) -> None:
    await redis.kill()
    await asyncio.sleep(lasts_s)
    world.start_redis()


async def _stop_redis(world: World, random: Random, redis: Host, lasts_s: float) -> None:
    await _stopped(world, redis, lasts_s)


async def _partition_redis(world: World, random: Random, redis: Host, lasts_s: float) -> None:
    front = random.choice(list(world.fronts))
    world.network.cut_off(front, redis.name)
    await asyncio.sleep(lasts_s)
    world.network.heal(front, redis.name)


async def _stopped(world: World, host: Host, lasts_s: float) -> None:
    host.stop()
    await asyncio.sleep(lasts_s)
    host.go_on()


OF_REPLICAS: dict[str, Fault] = {
    "sidecar killed": _kill_sidecar,
    "engine killed": _kill_engine,
    "node lost": _lose_node,
    "process stopped": _stop_process,
    "clock jumped": _jump,
    "connection reset": _reset,
    "connection half open": _half_open,
    "router cut off": _partition,
    "engine cut off": _partition_engine,
    "engine hung": _hang_engine,
    "replica drained": _drain,
    "replica replaced": _replace,
    "endpoint not ready": _not_ready,
    "endpoint gone": _withdraw,
    "session read slowly": _read_slowly,
    "cache evicted": _evict,
    "cache emptied": _empty_cache,
    "plug-in failed": _fail_plugin,
}
OF_FRONTS: dict[str, Fault] = {
    "router killed": _kill_front,
    "router stopped": _stop_front,
    "router clock jumped": _jump_front,
    "router replaced": _replace_front,
}
OF_REDIS = {
    "redis killed": _kill_redis,
    "redis stopped": _stop_redis,
    "redis cut off": _partition_redis,
}
OF_CACHES = ("cache emptied", "cache evicted")

HARMLESS = frozenset({*OF_CACHES, "plug-in failed"})
"""Faults after which admitted requests still meet their SLO."""


def kinds_of(scenario: Scenario) -> list[str]:
    """Return the faults that may happen: those of replicas three times as often as those that end streams."""
    kinds = [*OF_FRONTS, *OF_REDIS, *[kind for kind in OF_REPLICAS] * 3]
    impossible = {
        *(() if scenario.shares else OF_REDIS),
        *(() if scenario.families else OF_CACHES),
        *(() if scenario.as_plugin else ("plug-in failed",)),
    }
    return [kind for kind in kinds if kind not in impossible]
