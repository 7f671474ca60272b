"""A scenario's requests at a rate, as a trace, and what became of them.

The same for every way of serving: the scenario's own arrivals, stretched, and the first so many seconds of
them. `penstock replay` sends them open loop and judges each by the scenario's targets, of which a slowdown is
of what the engine was measured to take. Prompts differ from trial to trial, or caches would answer.
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
"""Scenarios whose requests are independent: a trace cannot wait for an answer before it sends the next."""

TOGETHER = 32
"""Answers that the guess has decode side by side."""


class Load(NamedTuple):
    """How requests are made of a scenario. scale: of prompts and answers, in tokens."""

    seconds: float
    scale: float
    context_tokens: int
    timeout_s: float


def requests(scenario: Scenario, rate_rps: float, load: Load) -> list[Arrival]:
    """Those of one trial, in order. Longer ones than the model's context are cut to it."""
    coming = takewhile(lambda a: a.arrival_s < load.seconds, arrivals(scenario, rate_rps, 0, laps=20))
    return [fitted(arrival, load) for arrival in coming]


def fitted(arrival: Arrival, load: Load) -> Arrival:
    """A request scaled, and within the context."""
    prompt = max(round(arrival.prompt_tokens * load.scale), 1)
    output = max(round(arrival.output_tokens * load.scale), 1)
    prompt = min(prompt, load.context_tokens - 2)
    return arrival._replace(prompt_tokens=prompt, output_tokens=min(output, load.context_tokens - 1 - prompt))


def guess_rps(scenario: Scenario, model: TimeModel, load: Load) -> float:
    """Where to begin: half of what keeps the measured engine busy, prompts alone and answers together."""
    requests = [fitted(arrival, load) for arrival in arrivals(scenario, 1.0, 0)]
    prompt_tokens = sum(arrival.prompt_tokens for arrival in requests) / len(requests)
    answer_tokens = sum(arrival.output_tokens for arrival in requests) / len(requests)
    step_s = model.seconds(BatchWork(TOGETHER, round(TOGETHER * prompt_tokens)))
    return 0.5 / (model.prefill_seconds(round(prompt_tokens)) + answer_tokens * step_s / TOGETHER)


def write_trace(path: Path, requests: list[Arrival]) -> None:
    """As `penstock replay` reads it."""
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
