"""An engine is killed under traffic: its streams move to the other replica, and no other request is lost."""

import os
import signal
from time import monotonic, time

from pool_on_cluster.traffic import PoolTraffic
from pool_on_cluster.waiting import until

from pool_on_vllm.context import VllmContext
from pool_on_vllm.metrics_page import total
from pool_on_vllm.processes import MODEL, START_S
from pool_on_vllm.steps.clients import PROMPT, client_of

LOAD = 0.5
"""Share of one engine's capacity: the remaining engine must serve all requests."""
BEFORE, AFTER = 12, 24
"""Requests that start before the engine is killed, and after."""


def recovery(context: VllmContext) -> str:
    """An engine is killed: its requests continue on the other replica, and `up` restarts it"""
    victim, other = context.replicas
    process = context.pool.engine(victim)
    with PoolTraffic(context.pool.router.url, MODEL, LOAD * context.capacity_rps) as traffic:
        traffic.wait_for_requests(BEFORE)
        running = "vllm:num_requests_running"
        until(lambda: total(victim.engine, running) > 0, f"{victim.name} runs a request", interval_s=0.02)
        os.kill(process, signal.SIGKILL)
        killed_s, killed_at_s = time(), monotonic()
        traffic.allow_losses(lambda request: request.replica == victim.name and request.started_s <= killed_s)
        traffic.wait_for_requests(AFTER)
        summary = traffic.summary()
    failovers = total(context.pool.router.admin_url, "penstock_router_failovers_total")
    assert not summary.lost, "\n".join(["requests were lost:", *map(str, summary.lost)])
    recovered_s = _wait_recovered(context, process, killed_at_s)
    return (
        f"of {summary.sent} requests {summary.allowed_losses} of {victim.name} were lost and no others, "
        f"{failovers:.0f} failed over to {other.name}; "
        f"`up` logged it, and {victim.name} was ready again after {recovered_s:.0f} s"
    )


def _wait_recovered(context: VllmContext, killed: int, killed_at_s: float) -> float:
    """Wait until the killed engine runs again and serves requests. Returns the seconds that it took."""
    victim = context.replicas[0]
    prefix = f"engine-{victim.name}"
    output = [
        line for line in context.pool.output().splitlines() if line.startswith(prefix) and "ended (" in line
    ]
    assert any("signal 9" in line and "restarting" in line for line in output), output
    until(lambda: victim.name in context.pool.serving(), f"{victim.name} is ready again", START_S)
    recovered_s = monotonic() - killed_at_s
    assert context.pool.engine(victim) != killed
    until(lambda: _served_by(context) == victim.name, f"{victim.name} answers again")
    return recovered_s


def _served_by(context: VllmContext) -> str:
    """Send a request and return the replica that answers it."""
    with client_of(context) as client:
        response = client.completions.with_raw_response.create(model=MODEL, prompt=PROMPT, max_tokens=1)
    return response.headers["x-penstock-replica"]
