"""vLLM's own benchmark client, unmodified, measures the same latencies as the router.

Both compute a request's TPOT as (last token − first token) / (tokens − 1), the router for tiers that are
judged by the mean. The client's TTFT begins before it connects, the router's when it has read the request.
Means come from the sums and counts of the router's histograms, percentiles from its log at level debug, which
has a line for every request.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy
import orjson

from pool_on_vllm.context import VllmContext
from pool_on_vllm.metrics_page import total
from pool_on_vllm.processes import MODEL, bench_serve, router_of

PROMPTS, PROMPT_TOKENS, ANSWER_TOKENS = 60, 2000, 40
"""Prompts are long, so that 5 % of a TTFT exceeds scheduling delays of client and router on busy cores."""
LOAD = 0.15
"""Share of one engine's capacity (in shorter requests), low enough that no request is rejected."""
TOLERANCES, RUNS = {"mean": 0.10, "median": 0.05, "p99": 0.25}, 3
"""Permitted relative differences, and the number of runs of which one must be within them. A stall of a busy
machine between the two clocks changes a mean a little and a p99 much, but not a median."""

MEASURES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "median": median,
    "p99": lambda values: float(numpy.percentile(values, 99)),
}


def agreement(context: VllmContext) -> str:
    """`vllm bench serve`, unmodified, measures the same latencies as the router"""
    for run in range(1, RUNS + 1):
        reported, output = _compare(context)
        if not (disagreed := disagreements(reported)):
            return f"{output}; in run {run}"
    raise AssertionError(f"{'; '.join(disagreed)}; beyond the tolerance in each of {RUNS} runs: {output}")


def disagreements(reported: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return a message for each measure whose two values differ by more than its tolerance."""
    differences = {name: abs(theirs / ours - 1) for name, (theirs, ours) in reported.items()}
    return [
        f"{name} off by {difference:.1%}"
        for name, difference in differences.items()
        if difference > TOLERANCES[name.split()[0]]
    ]


def _compare(context: VllmContext) -> tuple[Mapping[str, tuple[float, float]], str]:
    """Run the benchmark. Returns (client's, router's) values by measure, in ms, and a summary."""
    log = context.file("router-debug.log")
    with router_of(context.replicas, context.file("pool-best-effort.yaml"), log, level="debug") as router:
        theirs = _benchmark(context, router.url)
        means = {name: 1e3 * _mean_s(router.admin_url, name) for name in ("ttft", "tpot")}
    ours = _ended_requests(log)
    assert theirs["completed"] == PROMPTS == len(ours), (theirs["completed"], len(ours))
    reported = {}
    for name in ("ttft", "tpot"):
        values = [1e3 * line[f"{name}_s"] for line in ours]
        assert abs(fmean(values) - means[name]) < 1e-3 * means[name], (fmean(values), means)
        for measure, of in MEASURES.items():
            reported[f"{measure} {name}"] = (theirs[f"{measure}_{name}_ms"], of(values))
    context.figures["benchmark"] = reported
    output = ", ".join(f"{name} {theirs:.1f} and {ours:.1f} ms" for name, (theirs, ours) in reported.items())
    return reported, output


def _benchmark(context: VllmContext, url: str) -> dict[str, Any]:
    """Run `vllm bench serve` and return its results."""
    reported = context.file("bench-serve.json")
    rate_rps = LOAD * context.capacity_rps
    flags = {
        "backend": "openai",
        "base-url": url,
        "endpoint": "/v1/completions",
        "model": MODEL,
        "tokenizer": context.model,
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
    bench_serve(arguments, context.file("bench-serve.log"))
    results: dict[str, Any] = orjson.loads(reported.read_bytes())
    return results


def _mean_s(url: str, name: str) -> float:
    """Return the mean of one of the router's histograms."""
    histogram = f"penstock_router_{name}_seconds"
    return total(url, f"{histogram}_sum") / total(url, f"{histogram}_count")


def _ended_requests(log: Path) -> list[dict[str, Any]]:
    """Return the log lines of ended requests."""
    lines = [orjson.loads(line) for line in log.read_bytes().splitlines() if line.startswith(b"{")]
    return [line for line in lines if line["event"] == "ended"]
