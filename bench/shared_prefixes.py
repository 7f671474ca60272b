"""Measures the benefit of shared-block reports to sidecars, for prompts with a common prefix.

    PYTHONPATH=tests/common:tests/faults .venv/bin/python bench/shared_prefixes.py [--as-plugin]

Router, sidecar and a simulated engine in virtual time, over HTTP, gRPC and step reports in memory. Requests
arrive at random; all prompts have the same prefix and different ends. The bench runs once as in production,
and once with a sidecar that ignores which requests share blocks.
"""

import argparse
import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import structlog
from fault_simulation import virtual_loop
from fault_simulation.clients import Answer, Plan, run_client
from fault_simulation.hosts import Host, follow_tasks
from fault_simulation.invariants import missed_slo
from fault_simulation.network import Network, Weather
from fault_simulation.run import BEGIN_S, _end
from fault_simulation.scenario import Scenario, scenario_of
from fault_simulation.virtual_loop import VirtualLoop
from fault_simulation.world import World
from penstock_pool import parse_pool
from penstock_sidecar.mirror import replica_mirror
from penstock_simulator.http.request_body import ApiEndpoint

TIERS = [{"name": "chat", "slo": {"ttft": "2s", "tpot": "100ms"}}]
MOST_S = 600.0
MOST_TURNS = 1 << 40


def scenario(*, as_plugin: bool) -> Scenario:
    """Return one replica and one router, without faults."""
    document = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": "shared"},
        "spec": {
            "model": {"name": "m"},
            "engine": {"type": "simulated", "timeModel": "llama-3-8b-a100", "prefixCaching": True},
            "scheduling": {"policy": "slos-serve"},
            "tiers": TIERS,
            "routing": {"backup": "best-effort"},
        },
    }
    pool = parse_pool(document, "pool.yaml")
    return replace(
        scenario_of(Random(0)),
        pool=pool,
        engine_pool=pool,
        replicas=1,
        routers=1,
        gateway=False,
        shares=False,
        as_plugin=as_plugin,
        skew=(0, 0),
        outbox_bytes=64 << 20,
        weather=Weather(delay_s=0.0002),
    )


def plans(options: argparse.Namespace, address: str) -> Iterator[Plan]:
    """Yield the requests."""
    random, begin_s = Random(options.seed), 0.0
    common = _words(Random(1), options.common)
    for number in range(options.requests):
        begin_s += random.expovariate(options.rate)
        body: dict[str, Any] = {
            "model": "m",
            "prompt": f"{common} {number} {_words(random, options.own)}",
            "max_tokens": max(int(random.expovariate(1 / options.answer)), 1),
            "ignore_eos": True,
            "stream": True,
        }
        yield Plan(f"c{number}", begin_s, address, ApiEndpoint.COMPLETION, body, "chat", None, 0.0)


async def served(options: argparse.Namespace) -> str:
    """Serve all requests, and return a line with the results."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    follow_tasks(loop)
    random = Random(options.seed)
    parts = scenario(as_plugin=options.as_plugin)
    network = loop.network = Network(random, parts.weather)
    world = World(random, parts, network, Host("clients"))
    (address,) = world.start()
    await asyncio.sleep(BEGIN_S)
    answers = [Answer(plan, loop.time) for plan in plans(options, address)]
    running = [world.clients.spawn(run_client(answer.plan, answer)) for answer in answers]
    await asyncio.wait(running, timeout=MOST_S)
    admitted = [one for one in answers if one.headers.get(b"x-penstock-verdict") == b"admitted"]
    kept = sum(met_targets(one, parts) for one in admitted)
    attained = sum(met_targets(one, parts) for one in answers)
    preemptions = sum(engine.loop.state.preemptions for engine in world.engines.values())
    await _end(world)
    count = len(answers)
    return (
        f"attained {attained / count:6.1%}  admitted {len(admitted) / count:6.1%}  "
        f"of admitted {kept / max(len(admitted), 1):6.1%}  preemptions {preemptions}"
    )


def met_targets(answer: Answer, parts: Scenario) -> bool:
    """Return whether an answer met both targets at its client."""
    whole_answer = answer.whole and answer.status == 200 and bool(answer.times_s)
    return whole_answer and not [*missed_slo(answer, parts.pool, parts.weather.delay_s)]


@contextmanager
def whole() -> Iterator[None]:
    """Let sidecars ignore which requests share blocks, while the block runs."""
    with patch.object(replica_mirror, "shared_of", lambda _: None):
        yield


def _words(random: Random, count: int) -> str:
    return " ".join(random.choice(("salt", "wind", "gulls", "tide", "rope")) for _ in range(count))


def main() -> None:
    """Serve the requests with and without shared-block reports."""
    parser = argparse.ArgumentParser(description="Serve prompts with a common prefix.")
    add = parser.add_argument
    add("--requests", type=int, default=400, help="number of requests (default: %(default)s)")
    add("--rate", type=float, default=8.0, help="requests per second (default: %(default)s)")
    add("--common", type=int, default=4096, help="common words of all prompts (default: %(default)s)")
    add("--own", type=int, default=200, help="own words of each prompt (default: %(default)s)")
    add("--answer", type=int, default=400, help="mean answer tokens (default: %(default)s)")
    add("--seed", type=int, default=1, help="seed of arrivals (default: %(default)s)")
    add("--as-plugin", action="store_true", help="report as the plug-in in vLLM does")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for name, counted in (("each request whole", whole()), ("shared blocks once", nullcontext())):
        endless = patch.object(virtual_loop, "MOST_TURNS", MOST_TURNS)
        with counted, endless, asyncio.Runner(loop_factory=VirtualLoop) as runner:
            print(f"{name}: {runner.run(served(options))}", flush=True)


if __name__ == "__main__":
    main()
