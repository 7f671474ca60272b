"""Compares the simulator with vLLM on a GPU: TTFT and TPOT of the same requests.

    python bench/gpu_agreement.py > bench/results/h100-vllm.md

`bench/results/h100-vllm.jsonl` has trials of `bench/gpu` on an H100: vLLM's own scheduler with Llama-3.1-8B,
the scenario `mixed`, 20 s each. Their requests are simulated here with vLLM's scheduler, the built-in model
`llama-3-8b-h100` and its measured kernels. Only times are compared: which requests met their targets depends
on the engine's own time model, and that measurement had failed.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gpu.load import LoadOptions, requests
from penstock_core.domain.replica_view import Limits
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.scenarios import scenario
from penstock_simulator.simulation import LengthKnowledge, SimulatedOutcome, simulate
from scenario_fleet import fleet_of

TRIALS = Path(__file__).resolve().parent / "results" / "h100-vllm.jsonl"
SCENARIO, ENGINE = "mixed", "llama-3-8b-h100"
LOAD = LoadOptions(seconds=20.0, scale=1.0, context_tokens=8192, timeout_s=40.0)
MOST_RUNNING = 256
MEASURES = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s")
HEAD = """# The simulator and vLLM on an H100

`python bench/gpu_agreement.py` wrote this page. Times in ms: simulated / measured.
"""
HEADS = ("TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99")


class Row(NamedTuple):
    """One tier of one trial. times: simulated and measured, in seconds, in the order of `MEASURES`."""

    budget_tokens: int
    rate_rps: float
    tier: str
    requests: int
    times_s: Sequence[tuple[float, float]]


def main() -> None:
    rows = [row for line in TRIALS.read_text().splitlines() for row in rows_of(json.loads(line))]
    print(HEAD)
    print(f"| tokens a step | requests/s | tier | requests | {' | '.join(HEADS)} |")
    print("|--:|--:|---|--:|" + "--:|" * len(HEADS))
    for row in rows:
        cells = " | ".join(f"{1e3 * simulated:.0f} / {1e3 * real:.0f}" for simulated, real in row.times_s)
        print(f"| {row.budget_tokens} | {row.rate_rps:g} | {row.tier} | {row.requests} | {cells} |")
    print(f"\nMedians over rows of measured / simulated: {', '.join(ratios(rows))}.")
    print(f"TTFT p50 was measured {' to '.join(longer_ms(rows))} ms longer than simulated.")


def rows_of(trial: dict[str, object]) -> Iterator[Row]:
    """Yield the tiers of a trial."""
    budget_tokens, rate_rps = int(str(trial["way"]).split()[1]), float(str(trial["rate_rps"]))
    report = trial["report"]
    assert isinstance(report, dict)
    outcomes = simulated(budget_tokens, rate_rps)
    for tier, measured in sorted(report["tiers"].items()):
        of_tier = [outcome for outcome in outcomes if outcome.tier == tier]
        assert len(of_tier) == measured["requests"]
        times_s = [(value, measured[name]) for name, value in zip(MEASURES, measures(of_tier), strict=True)]
        yield Row(budget_tokens, rate_rps, tier, len(of_tier), times_s)


def simulated(budget_tokens: int, rate_rps: float) -> list[SimulatedOutcome]:
    """Return the outcomes of a trial's requests with vLLM's scheduler."""
    workload = scenario(f"{SCENARIO}@{ENGINE}")
    fleet = replace(
        fleet_of(workload, "vllm", LengthKnowledge.PREDICTED, TruthKind.MEASURED),
        limits=Limits(budget_tokens, MOST_RUNNING),
        speculation=None,
    )
    return list(simulate(fleet, requests(workload, rate_rps, LOAD), seed=0))


def measures(outcomes: Sequence[SimulatedOutcome]) -> list[float]:
    """Return `MEASURES` of simulated requests."""
    ttft_s = [outcome.ttft_s for outcome in outcomes if outcome.ttft_s is not None]
    tpot_s = [outcome.tpot_s for outcome in outcomes if outcome.tpot_s is not None]
    return [float(np.quantile(times_s, share)) for times_s in (ttft_s, tpot_s) for share in (0.5, 0.99)]


def ratios(rows: Sequence[Row]) -> list[str]:
    """Return the median ratio of measured to simulated times for each measure."""
    found = np.median([[real / simulated for simulated, real in row.times_s] for row in rows], axis=0)
    return [f"{head} {ratio:.2f}" for head, ratio in zip(HEADS, found, strict=True)]


def longer_ms(rows: Sequence[Row]) -> tuple[str, str]:
    """Return the least and the largest difference of median TTFTs."""
    differences_ms = [1e3 * (row.times_s[0][1] - row.times_s[0][0]) for row in rows]
    return f"{min(differences_ms):.0f}", f"{max(differences_ms):.0f}"


if __name__ == "__main__":
    main()
