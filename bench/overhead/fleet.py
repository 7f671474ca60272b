"""Measurements with several replicas: the cost of a hop, and latencies in front of ten replicas.

A router and two Envoys, one for each protocol of pickers, are in front of the same sidecars
and take turns. Each sidecar reports to all three, so their CPU is not measured here.

Of ten replicas nine are fakes in one process on the other core, because ten sidecars, which have a machine
each in a real pool, need more than a core at this rate. The tenth is a sidecar, and the latencies are those
of its answers: a tenth of the requests, by the order `round-robin`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from overhead.deployments import PICKER, POOL, envoy, idle_replicas, replicas, router
from overhead.load import exchange_all, exchange_at, for_seconds, interleave, percentile
from overhead.machine import EngineRoute, machine
from overhead.measures import warm_up
from overhead.ways import ROUTER

STEP_MS = 30.0
REPLICAS, RATE_PER_S = 10, 500.0
REJECTS = POOL.replace("ttft: 60s", "ttft: 1ms")
"""The pool of a sidecar that rejects all but best effort, because no prompt meets this TTFT."""
HOPS = "  routing: {order: round-robin, maxHops: 2}\n"
EVENLY = "  routing: {order: round-robin}\n"


@dataclass(slots=True)
class FleetMeasurements:
    """Measurements of one way in front of several replicas.

    hop_ms: for each round, the median latency of answers after one rejection less that without rejection.
    decisions_s: from a request's planned time to the end of its one-token answer, by the sidecar.
    """

    hop_ms: list[float] = field(default_factory=list)
    decisions_s: list[float] = field(default_factory=list)


async def measured(folder: Path, rounds: int, duration_s: float) -> dict[str, FleetMeasurements]:
    """Measure both, with the ways in turns."""
    results = {name: FleetMeasurements() for name in (ROUTER, *PICKER)}
    with machine(folder / "hop") as host:
        behind = replicas(host, "hop", [REJECTS, POOL], STEP_MS, http=True)
        fronts = {ROUTER: router(host, ROUTER, behind, pool_text=POOL + HOPS)}
        fronts |= {name: envoy(host, name, behind, how, POOL + HOPS) for name, how in PICKER.items()}
        for _, name in await _turns(fronts, rounds):
            answers = await exchange_all(fronts[name].url, for_seconds(duration_s), 1, stream=False)
            results[name].hop_ms.append(_hop_ms(answers.latencies_s, answers.hops))
    with machine(folder / "fleet") as host:
        behind = replicas(host, "fleet", [POOL], STEP_MS, http=True)
        sidecar, all_replicas = behind[0].name.encode(), [*behind, *idle_replicas(host, REPLICAS - 1)]
        fronts = {ROUTER: router(host, ROUTER, all_replicas, pool_text=POOL + EVENLY)}
        fronts |= {name: envoy(host, name, all_replicas, how, POOL + EVENLY) for name, how in PICKER.items()}
        for _, name in await _turns(fronts, rounds):
            answered = await exchange_at(fronts[name].url, RATE_PER_S, duration_s)
            results[name].decisions_s += [each.latency_s for each in answered if each.replica == sidecar]
    return results


HOP = "one hop, ms"


def at_rate(share: float) -> str:
    """Return the name of the row of a percentile."""
    return f"answer at {RATE_PER_S:.0f} requests/s, {REPLICAS} replicas, p{100 * share:.0f}, ms"


def figures(results: Mapping[str, FleetMeasurements]) -> dict[str, dict[str, float]]:
    """Return the figures by row and way."""
    hops = {HOP: {name: median(one.hop_ms) for name, one in results.items()}}
    return hops | {
        at_rate(share): {name: 1000 * percentile(one.decisions_s, share) for name, one in results.items()}
        for share in (0.5, 0.95, 0.99)
    }


async def _turns(fronts: dict[str, EngineRoute], rounds: int) -> list[tuple[int, str]]:
    for way in fronts.values():
        await warm_up(way)
    return list(interleave(rounds, list(fronts)))


def _hop_ms(latencies_s: list[float], hops: list[int]) -> float:
    """Return the latency of a hop. Every second request goes first to the replica that rejects."""
    by_hops = {
        count: [latency for latency, hop in zip(latencies_s, hops, strict=True) if hop == count]
        for count in (1, 2)
    }
    return 1000 * (median(by_hops[2]) - median(by_hops[1]))
