"""A scenario's requests at a rate, as a trace, and their replay.

Every way of serving gets the same requests: the first seconds of the scenario's own arrivals, with scaled
times. `penstock replay` sends them open loop and judges each by the scenario's targets; a slowdown is
relative to the engine's measured time model. Prompts differ between trials, so that prefix caches have no
hits.
"""

import csv
import json
import subprocess
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from penstock_core.timing.time_model import BatchWork, TimeModel
from penstock_simulator.arrival import Arrival
from penstock_simulator.scenarios import SCENARIOS, Scenario, arrivals

from gpu.journal import Report

SINGLE = tuple(
    name for name in SCENARIOS if not any(a.session for a in arrivals(SCENARIOS[name], 1.0, seed=0))
)
"""Scenarios with independent requests, because an open-loop trace does not wait for answers."""

CONCURRENT_DECODES = 32
"""Concurrent decodes that the guess assumes."""


class LoadOptions(NamedTuple):
    """How requests are derived from a scenario. scale: factor on prompt and answer tokens."""

    seconds: float
    scale: float
    context_tokens: int
    timeout_s: float


def requests(scenario: Scenario, rate_rps: float, load: LoadOptions) -> list[Arrival]:
    """Return the requests of one trial in order, cut to the model's context."""
    sample = takewhile(lambda a: a.arrival_s < load.seconds, arrivals(scenario, rate_rps, 0, laps=20))
    return [fitted(arrival, load) for arrival in sample]


def fitted(arrival: Arrival, load: LoadOptions) -> Arrival:
    """Return a request with scaled lengths, within the context."""
    prompt = max(round(arrival.prompt_tokens * load.scale), 1)
    output = max(round(arrival.output_tokens * load.scale), 1)
    prompt = min(prompt, load.context_tokens - 2)
    return arrival._replace(prompt_tokens=prompt, output_tokens=min(output, load.context_tokens - 1 - prompt))


def guess_rps(scenario: Scenario, model: TimeModel, load: LoadOptions) -> float:
    """Return the first rate: half of the rate that fills the engine with prefills and batched decodes."""
    requests = [fitted(arrival, load) for arrival in arrivals(scenario, 1.0, 0)]
    prompt_tokens = sum(arrival.prompt_tokens for arrival in requests) / len(requests)
    answer_tokens = sum(arrival.output_tokens for arrival in requests) / len(requests)
    step_s = model.seconds(BatchWork(CONCURRENT_DECODES, round(CONCURRENT_DECODES * prompt_tokens)))
    return 0.5 / (model.prefill_seconds(round(prompt_tokens)) + answer_tokens * step_s / CONCURRENT_DECODES)


def write_trace(path: Path, requests: list[Arrival]) -> None:
    """Write the requests as a trace for `penstock replay`."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("arrival_s", "prompt_tokens", "output_tokens", "tier"))
        rows.writerows((f"{a.arrival_s:.4f}", a.prompt_tokens, a.output_tokens, a.tier) for a in requests)


def replay(penstock: Path, folder: Path, url: str, seed: int, timeout_s: float) -> Report:
    """Send the folder's trace to a server, judged by the folder's pool file. Raises CalledProcessError."""
    reported = folder / "replay.json"
    command = [penstock, "replay", "--trace", folder / "trace.csv", "--url", url, "-f", folder / "pool.yaml"]
    command += ["--seed", str(seed), "--timeout", f"{timeout_s:g}", "--json", reported]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    report: Report = json.loads(reported.read_text())
    return report
