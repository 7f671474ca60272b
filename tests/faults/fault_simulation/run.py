"""One run: a pool, its clients and its faults, all drawn from one seed."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from fault_simulation.clients import FAULTS_S, Answer, plan_of, run_client
from fault_simulation.faults import inject
from fault_simulation.gateway import LOST
from fault_simulation.hosts import HOST, Host, follow_tasks
from fault_simulation.invariants import (
    broken_answer,
    broken_bounds,
    broken_caches,
    broken_limits,
    broken_minute,
    broken_refusal,
    broken_rest,
    broken_service,
    broken_tokens,
    broken_wait,
    error_of,
    missed_slo,
)
from fault_simulation.network import Network
from fault_simulation.scenario import MOST_AT_ONCE, scenario_of
from fault_simulation.virtual_loop import VirtualLoop
from fault_simulation.world import World, moves_of

BEGIN_S = 2.0
"""Until all processes have found each other."""

MOST_FAULTS = 6
MOST_FAULTS_BUSY = 1
"""In a busy run, which checks the SLOs of admitted requests."""

ANSWERED_S = 60.0
"""After the last fault every client has its answer within this."""

SETTLE_S = 40.0
"""After the last answer everything is at rest within this: probes, backoffs, keepalive, descriptions."""

SETTLE_EACH_S = 0.5

MOST_DIFFERING = 3
"""Of a ledger that is wrong once it is often wrong."""

CHECK_S = 0.1
"""How often bounds are checked."""

CANCELLED_S = 1.0
"""Time within which sidecars and engines end requests that their router or sidecar has abandoned."""


@dataclass(slots=True)
class Result:
    """What one run has shown.

    broken: invariants, with what was seen. moves: of streams, by outcome. slos_checked: admitted requests
        whose SLO was checked.
    """

    seed: int
    answers: list[Answer]
    faults: Counter[str]
    broken: list[str]
    moves: Counter[str]
    slos_checked: int
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
    random = Random(seed)
    scenario = scenario_of(random)
    network = loop.network = Network(random, scenario.weather)
    world = World(random, scenario, network, Host("clients"))
    loop.set_exception_handler(lambda _, context: _record_crash(world, context))
    addresses = world.start()
    await asyncio.sleep(BEGIN_S)
    world.unwell_until_s.clear()
    clients = random.randint(30, 60) if scenario.busy else random.randint(2, 10)
    answers = [Answer(plan_of(n, random, scenario, addresses), loop.time) for n in range(clients)]
    broken: list[str] = []
    checking = asyncio.create_task(_check(world, broken))
    running = [world.clients.spawn(_serve(world, answer, broken)) for answer in answers]
    await inject(world, random, FAULTS_S, MOST_FAULTS_BUSY if scenario.busy else MOST_FAULTS)
    await asyncio.wait(running, timeout=ANSWERED_S)
    left = await _left_at_rest(world)
    checking.cancel()
    broken += [*_broken(world, answers), *left]
    moves = sum(map(moves_of, world.fronts.values()), world.moves)
    slos_checked = sum(_met_slo(world, answer) for answer in answers)
    result = Result(seed, answers, +network.faults, broken, moves, slos_checked, loop.turns, loop.time())
    await _end(world)
    return result


async def _serve(world: World, answer: Answer, broken: list[str]) -> None:
    """Run one client. An error in place of its answer has to have a cause at that time."""
    await run_client(answer.plan, answer)
    if answer.left or not answer.sent_s:
        return
    spells = world.spells_of(answer.plan.address, answer.sent_s, answer.ended_s)
    if world.gateway is None and not answer.plan.reads_after_s and not any(spell.lost for spell in spells):
        broken += broken_wait(answer, world.scenario.pool)
        broken += broken_refusal(answer, world.known_to(answer.plan.address))
    if spells:
        return
    since_s = answer.ended_s - 1.0
    if world.gateway is not None:  # it uses the first list of endpoints, and moves no stream
        since_s = answer.sent_s
        if answer.status in (200, 502) or world.scenario.tight:  # sidecars have the bound, and drop answers
            return
        if answer.whole and _is_of_lost_endpoint(world, answer):
            return
    broken += broken_service(answer, world.well(since_s), world.scenario.pool)


def _is_of_lost_endpoint(world: World, answer: Answer) -> bool:
    """Return whether a gateway has lost an endpoint with the request, and a fault has touched that."""
    message = str(error_of(answer).get("message"))
    replica = message.removeprefix(LOST).partition("-")[0]
    return message.startswith(LOST) and world.unwell_until_s.get(replica, 0.0) > answer.sent_s


def _met_slo(world: World, answer: Answer) -> bool:
    """Return whether an answer's SLO has to be met: it was admitted, and no fault affected it."""
    plan, weather = answer.plan, world.scenario.weather
    replica = answer.headers.get(b"x-penstock-replica", b"").decode()
    return (
        answer.status == 200
        and answer.whole
        and bool(plan.body["stream"])
        and not plan.reads_after_s
        and answer.headers.get(b"x-penstock-verdict") == b"admitted"
        and world.scenario.pool.spec.scheduling.policy == "slos-serve"
        and world.scenario.pool is world.scenario.engine_pool
        and not weather.slow_share
        and world.unwell_until_s.get(replica, 0.0) < answer.sent_s
        and not world.spells_of(plan.address, answer.sent_s, answer.ended_s)
    )


async def _check(world: World, broken: list[str]) -> None:
    orphans_s: dict[str, float] = {}
    while True:
        await asyncio.sleep(CHECK_S)
        now_s = asyncio.get_running_loop().time()
        orphans_s = {orphan: orphans_s.get(orphan, now_s) for orphan in world.orphans()}
        if len(broken) < 10:
            broken += [f"10 {orphan}" for orphan, at_s in orphans_s.items() if now_s - at_s > CANCELLED_S]
            broken += broken_bounds(world.fronts.values(), world.sidecars.values(), world.engines.values())
            if _shares_well(world):
                broken += broken_limits(world.fronts.values(), MOST_AT_ONCE)


def _shares_well(world: World) -> bool:
    """Return whether routers have been able to ask the Redis all the time, within its timeout."""
    touched = any("redis" in kind for kind in world.network.faults)
    return world.redis is not None and not touched and not world.scenario.weather.slow_share


def _broken(world: World, answers: list[Answer]) -> Iterator[str]:
    yield from (f"8 {crash}" for crash in world.crashes)
    yield from (f"9 {line}" for line in world.unordered)
    yield from (f"14 {line}" for line in world.differing[:MOST_DIFFERING])
    if world.redis is not None and _shares_well(world) and not world.spells:
        yield from broken_minute(answers, world.scenario.per_minute)
        counted = sum(world.redis.tokens.values())
        yield from broken_tokens(answers, world.scenario.tokens_per_minute, counted)
    for answer in answers:
        yield from broken_answer(answer, may_be_cut=_may_be_cut(world, answer))
        if _met_slo(world, answer):
            yield from missed_slo(answer, world.scenario.pool, world.scenario.weather.delay_s)


def _may_be_cut(world: World, answer: Answer) -> bool:
    """Return whether an answer may have no end.

    Its router was lost or held too many bytes, or its client could not connect or read too slowly.
    """
    if not answer.sent_s or world.scenario.tight:
        return True
    spells = world.spells_of(answer.plan.address, answer.sent_s, answer.ended_s)
    if any(spell.lost for spell in spells) or answer.plan.reads_after_s:
        return True
    if world.gateway is None:
        return False
    replica = answer.headers.get(b"x-penstock-replica", b"").decode()
    return world.unwell_until_s.get(replica, 0.0) > answer.sent_s


async def _left_at_rest(world: World) -> list[str]:
    """Return the gauges that have not returned to zero in time."""
    give_up_s = asyncio.get_running_loop().time() + SETTLE_S
    while True:
        await asyncio.sleep(SETTLE_EACH_S)
        left = list(broken_rest(world.fronts.values(), world.sidecars.values(), world.engines.values()))
        left += broken_caches(world.fronts.values(), world.sidecars, world.engines)
        if world.gateway is not None and world.gateway.connections:
            left.append(f"6 gateway: {len(world.gateway.connections)} connections at rest")
        if not left or asyncio.get_running_loop().time() >= give_up_s:
            return left


async def _end(world: World) -> None:
    await world.clients.kill()
    hosts = [
        each.host for each in (*world.fronts.values(), *world.sidecars.values(), *world.engines.values())
    ]
    gateways = [] if world.gateway is None else [world.gateway.host]
    for host in [world.clients, *gateways, *hosts]:
        await host.kill()


def _record_crash(world: World, context: dict[str, Any]) -> None:
    """Record an exception that a process has not handled, unless it was killed."""
    error = context.get("exception")
    task = context.get("task") or context.get("future")
    handle = context.get("handle")
    host = HOST.get() if handle is None else handle._context.get(HOST)
    if host is None or host.alive:
        name = "?" if host is None else host.name
        world.crashes.append(f"{name}: {context.get('message')}: {error!r} {task}")
