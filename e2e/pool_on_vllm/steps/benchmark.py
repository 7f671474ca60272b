"""vLLM's own benchmark client, unmodified, against the router: both must measure the same.

Both compute a request's TPOT as (last token − first token) / (tokens − 1), the router if its tier is judged
by the mean. The client counts TTFT from before it connects, the router from when it has read the request. The
router has exact figures in two places: sums and counts of its histograms give means, and its log at level
debug has a line for every request, which gives percentiles.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy
import orjson

from pool_on_vllm.figures import total
from pool_on_vllm.servers import MODEL, bench_serve, router_of
from pool_on_vllm.world import World

PROMPTS, PROMPT_TOKENS, ANSWER_TOKENS = 60, 2000, 40
"""Prompts are long, so that 5 % of a TTFT are more than it takes to wake router and client on busy cores:
that lies between the two clocks."""
LOAD = 0.15
"""Of the (shorter) requests that one engine answers a second: no request should be rejected."""
AGREES, TRIES = {"mean": 0.10, "median": 0.05, "p99": 0.25}, 3
"""How far off each measure may be, and how often that is tried. One stall of a busy machine between the two
clocks moves a mean by a sixtieth of itself and may be all of a p99, but leaves a median alone."""

MEASURES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "median": median,
    "p99": lambda values: float(numpy.percentile(values, 99)),
}


def agrees_with_the_router(world: World) -> str:
    """`vllm bench serve` runs as it is, and measures what the router says"""
    for tried in range(1, TRIES + 1):
        reported, output = _compared(world)
        if not (disagreed := disagreements(reported)):
            return f"{output}; in run {tried}"
    raise AssertionError(
        f"{'; '.join(disagreed)}, and further off than allowed in each of {TRIES} runs: {output}"
    )


def disagreements(reported: Mapping[str, tuple[float, float]]) -> list[str]:
    """The measures of a run in which both are further apart than such a measure may be, in words."""
    off = {name: abs(theirs / ours - 1) for name, (theirs, ours) in reported.items()}
    return [f"{name} off by {far:.1%}" for name, far in off.items() if far > AGREES[name.split()[0]]]


def _compared(world: World) -> tuple[Mapping[str, tuple[float, float]], str]:
    """What both have measured in one run, and all figures in words."""
    log = world.file("router-debug.log")
    with router_of(world.replicas, world.file("pool-best-effort.yaml"), log, level="debug") as router:
        theirs = _benchmark(world, router.url)
        means = {name: 1e3 * _mean_s(router.admin_url, name) for name in ("ttft", "tpot")}
    ours = _lines(log)
    assert theirs["completed"] == PROMPTS == len(ours), (theirs["completed"], len(ours))
    reported = {}
    for name in ("ttft", "tpot"):
        values = [1e3 * line[f"{name}_s"] for line in ours]
        assert abs(fmean(values) - means[name]) < 1e-3 * means[name], (fmean(values), means)
        for measure, of in MEASURES.items():
            reported[f"{measure} {name}"] = (theirs[f"{measure}_{name}_ms"], of(values))
    world.figures["benchmark"] = reported
    output = ", ".join(f"{name} {theirs:.1f} and {ours:.1f} ms" for name, (theirs, ours) in reported.items())
    return reported, output


def _benchmark(world: World, url: str) -> dict[str, Any]:
    """What it has found."""
    reported = world.file("bench-serve.json")
    rate_rps = LOAD * world.capacity_rps
    flags = {
        "backend": "openai",
        "base-url": url,
        "endpoint": "/v1/completions",
        "model": MODEL,
        "tokenizer": world.model,
        "dataset-name": "random",
        "random-input-len": PROMPT_TOKENS,
        "random-output-len": ANSWER_TOKENS,
        "num-prompts": PROMPTS,
        "request-rate": f"{rate_rps:.2f}",
        "result-dir": reported.parent,
        "result-filename": reported.name,
    }
    arguments = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    arguments += ["--ignore-eos", "--save-result", "--disable-tqdm"]
    bench_serve(arguments, world.file("bench-serve.log"))
    found: dict[str, Any] = orjson.loads(reported.read_bytes())
    return found


def _mean_s(url: str, name: str) -> float:
    """From the sum and the count of a histogram."""
    histogram = f"penstock_router_{name}_seconds"
    return total(url, f"{histogram}_sum") / total(url, f"{histogram}_count")


def _lines(log: Path) -> list[dict[str, Any]]:
    """Of requests that the router has ended."""
    lines = [orjson.loads(line) for line in log.read_bytes().splitlines() if line.startswith(b"{")]
    return [line for line in lines if line["event"] == "ended"]
