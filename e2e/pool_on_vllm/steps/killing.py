"""kill -9 of an engine under traffic: its streams move to the other replica, no other request is lost."""

import os
import signal
from time import monotonic, time

from pool_on_cluster.traffic import Traffic
from pool_on_cluster.waiting import until

from pool_on_vllm.figures import total
from pool_on_vllm.servers import MODEL, START_S
from pool_on_vllm.steps.clients import PROMPT, client_of
from pool_on_vllm.world import World

LOAD = 0.5
"""Of the requests that one engine answers a second: one is left to answer them all."""
BEFORE, AFTER = 12, 24
"""Requests that begin before the engine is killed, and after."""


def engine(world: World) -> str:
    """kill -9 of an engine: its requests continue on the other replica, and `up` starts it again"""
    victim, other = world.replicas
    process = world.up.engine(victim)
    with Traffic(world.up.router.url, MODEL, LOAD * world.capacity_rps) as traffic:
        traffic.more_requests(BEFORE)
        running = "vllm:num_requests_running"
        until(lambda: total(victim.engine, running) > 0, f"{victim.name} computes", every_s=0.02)
        os.kill(process, signal.SIGKILL)
        killed_s, killed_at_s = time(), monotonic()
        traffic.excuse(lambda requested: requested.replica == victim.name and requested.began_s <= killed_s)
        traffic.more_requests(AFTER)
        toll = traffic.toll()
    failovers = total(world.up.router.admin_url, "penstock_router_failovers_total")
    assert not toll.lost, "\n".join(["requests were lost:", *map(str, toll.lost)])
    back_s = _back(world, process, killed_at_s)
    return (
        f"of {toll.asked} requests {toll.excused} of {victim.name} were lost and no others, "
        f"{failovers:.0f} were sent to {other.name} instead; "
        f"up logged it, and had {victim.name} in service again after {back_s:.0f} s"
    )


def _back(world: World, killed: int, killed_at_s: float) -> float:
    """Until the engine that was killed runs again and takes requests. Returns how long that took."""
    victim = world.replicas[0]
    note = f"engine-{victim.name}"
    output = [line for line in world.up.said().splitlines() if line.startswith(note) and "ended (" in line]
    assert any("signal 9" in line and "starting it again" in line for line in output), output
    until(lambda: victim.name in world.up.serving(), f"{victim.name} is in service again", START_S)
    back_s = monotonic() - killed_at_s
    assert world.up.engine(victim) != killed
    until(lambda: _served_by(world) == victim.name, f"{victim.name} answers again")
    return back_s


def _served_by(world: World) -> str:
    """The replica that answers a request now."""
    with client_of(world) as client:
        requested = client.completions.with_raw_response.create(model=MODEL, prompt=PROMPT, max_tokens=1)
    return requested.headers["x-penstock-replica"]
