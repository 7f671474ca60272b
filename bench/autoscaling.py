"""Compares autoscaling on admission with autoscaling on queue lengths: attainment and GPU hours.

    .venv/bin/python bench/autoscaling.py [--workload day[,azure]] [--jobs N] [--startup S]

A pool in virtual time: Llama-3-8B on A100s under slos-serve, predicted lengths, measured truth; a new replica
is ready a minute after the decision. `azure` is twenty minutes of Azure's trace of 2023, chat and
code, as recorded: a steady stream and bursts that are over before a replica has started. `day` is the same
requests thinned to one wave, from a tenth of the load up to all of it and back: a day's variation, in less
time.

Autoscalers, between 1 and 8 replicas, with a decision every 15 s: `penstock` (the production decision, for
95 %); the Kubernetes autoscaler's algorithm on requests waiting, or waiting and running, by replica, each
at all targets of a range; and a fixed number of replicas. GPU hours count from the first arrival
to the last and include starting and draining replicas. Writes bench/results/autoscaling.{json,md} and
figures.
"""

import argparse
import csv
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from penstock_core.autoscaling.decision import decide_replicas
from penstock_core.autoscaling.demand import DemandObservation
from penstock_core.autoscaling.memory import AutoscalerState
from penstock_core.autoscaling.terms import Scaling
from penstock_core.domain.slo import Slo, Tier
from penstock_core.timing.builtin_models import kv_cache_tokens, time_model
from penstock_simulator.simulation import Arrival, Fleet, FleetAutoscaler, SimulatedOutcome, simulate
from penstock_simulator.simulation.autoscaling.autoscaler import ReplicaCounts, gpu_hours, scale_events
from penstock_simulator.simulation.autoscaling.queue_length import (
    QueueLengthAutoscaler,
    QueueTarget,
    in_flight,
    waiting,
)

FOLDER = Path(__file__).parent
TRACE, RESULTS = FOLDER / "traces/azure-20-minutes.csv.gz", FOLDER / "results"
FEWEST, MOST, AT_FIRST = 1, 8, 2
LEAST_SHARE = 0.1
MODEL = "llama-3-8b-a100"
FLEET = Fleet(
    policy="slos-serve",
    model=time_model(MODEL),
    kv_tokens=kv_cache_tokens(MODEL),
    tiers={
        "chat": Tier("chat", Slo(ttft_slowdown=5, tpot_s=0.1)),
        "coder": Tier("coder", Slo(ttft_slowdown=5, tpot_s=0.05)),
    },
    default_tier="chat",
    replicas=AT_FIRST,
    routers=2,
)
METRICS = {"in flight": (in_flight, (4, 8, 16, 32)), "waiting": (waiting, (0.5, 2, 8))}
FIXED = (2, 3, 4, 5)
FEWEST_IN_A_MINUTE = 20
COLUMNS = ("attained %", "of admitted %", "worst minute %", "GPU hours", "scale events", "most GPUs")


@dataclass(frozen=True)
class AutoscalingTrial:
    """One run. target: target of the metric, or the fixed number of replicas."""

    workload: str
    autoscaler: str
    target: float
    startup_s: float

    @property
    def name(self) -> str:
        return self.autoscaler if self.autoscaler == "penstock" else f"{self.autoscaler} {self.target:g}"


@dataclass
class Penstock:
    """The production decision with its state."""

    scaling: Scaling = field(default_factory=lambda: Scaling(FEWEST, MOST))
    memory: AutoscalerState = field(default_factory=AutoscalerState)

    def decide(self, demand: DemandObservation, now_s: float) -> int:
        decision, self.memory = decide_replicas(self.scaling, demand, self.memory, now_s)
        return decision.replicas


def azure() -> Iterator[Arrival]:
    with gzip.open(TRACE, "rt") as file:
        for number, row in enumerate(csv.DictReader(file)):
            prompt, output = int(row["prompt_tokens"]), max(int(row["output_tokens"]), 1)
            yield Arrival(str(number), float(row["arrival_s"]), row["tier"], prompt, output)


def day() -> Iterator[Arrival]:
    random = Random("day")
    for arrival in azure():
        share = LEAST_SHARE + (1 - LEAST_SHARE) * math.sin(math.pi * arrival.arrival_s / 1200) ** 2
        if random.random() < share:
            yield arrival


WORKLOADS: dict[str, Callable[[], Iterator[Arrival]]] = {"day": day, "azure": azure}


def decider(trial: AutoscalingTrial) -> Callable[[DemandObservation, float], int]:
    if trial.autoscaler == "penstock":
        return Penstock().decide
    if trial.autoscaler == "fixed":
        return lambda demand, now_s: int(trial.target)
    metric, _ = METRICS[trial.autoscaler.removeprefix("HPA, ")]
    return QueueLengthAutoscaler(QueueTarget(metric, trial.target, FEWEST, MOST, averaged_s=60.0)).decide


def run(trial: AutoscalingTrial) -> dict[str, Any]:
    """Serve the workload, and return the row of the results."""
    arrivals, counts = list(WORKLOADS[trial.workload]()), list[ReplicaCounts]()
    autoscaler = FleetAutoscaler(decider(trial), startup_s=trial.startup_s, on_change=counts.append)
    fleet = replace(FLEET, replicas=int(trial.target)) if trial.autoscaler == "fixed" else FLEET
    outcomes = list(simulate(fleet, arrivals, 0, autoscaler=autoscaler))
    admitted = [outcome.met for outcome in outcomes if outcome.verdict == "admitted"]
    until_s = arrivals[-1].arrival_s
    figures = (
        100 * sum(outcome.met for outcome in outcomes) / len(outcomes),
        100 * sum(admitted) / len(admitted),
        100 * min(by_minute(outcomes)),
        gpu_hours(counts, until_s),
        scale_events(counts),
        max(count.gpus for count in counts),
    )
    tiers = {
        name: sum(o.met for o in outcomes if o.tier == name) / sum(o.tier == name for o in outcomes)
        for name in FLEET.tiers
    }
    return {
        "workload": trial.workload,
        "name": trial.name,
        "who": trial.autoscaler,
        **dict(zip(COLUMNS, figures, strict=True)),
        "tiers": tiers,
        "gpus": [*((count.at_s, count.gpus) for count in counts if count.at_s < until_s), (until_s, 0)],
    }


def by_minute(outcomes: list[SimulatedOutcome]) -> list[float]:
    """Return the attainment of each minute's arrivals, for minutes with enough of them."""
    minutes: dict[int, list[bool]] = defaultdict(list)
    for outcome in outcomes:
        minutes[int(outcome.arrival_s // 60)].append(outcome.met)
    return [sum(met) / len(met) for met in minutes.values() if len(met) >= FEWEST_IN_A_MINUTE]


def trials(workload: str, startup_s: float) -> list[AutoscalingTrial]:
    """Return the trials of all deciders, the references first."""
    return [
        AutoscalingTrial(workload, "penstock", 0, startup_s),
        *(
            AutoscalingTrial(workload, f"HPA, {name}", target, startup_s)
            for name, (_, targets) in METRICS.items()
            for target in targets
        ),
        *(AutoscalingTrial(workload, "fixed", replicas, startup_s) for replicas in FIXED),
    ]


def best(rows: list[dict[str, Any]], least: float) -> str | None:
    """Return the queue-length target with the fewest GPU hours that attains at least `least`, if any."""
    as_good = [row for row in rows if row["who"].startswith("HPA") and row["attained %"] >= least]
    return min(as_good, key=lambda row: float(row["GPU hours"]), default={"name": None})["name"]


def table(workload: str, rows: list[dict[str, Any]]) -> str:
    ours = next(row for row in rows if row["who"] == "penstock")
    chosen = best(rows, ours["attained %"])
    heads = ["", *COLUMNS, *(f"{name} %" for name in FLEET.tiers)]
    lines = [f"**{workload}**", "", f"| {' | '.join(heads)} |", f"|---|{'--:|' * (len(heads) - 1)}"]
    for row in rows:
        figures = [f"{row[name]:.1f}" if "%" in name else f"{row[name]:.3g}" for name in COLUMNS]
        figures += [f"{100 * share:.1f}" for share in row["tiers"].values()]
        name = f"**{row['name']}**" if row["name"] in {chosen, "penstock"} else row["name"]
        lines.append(f"| {name} | {' | '.join(figures)} |")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], shown: list[str], path: Path) -> None:
    """Draw the number of GPUs over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.0))
    axes = figure.add_subplot(1, 1, 1)
    for row in rows:
        if row["name"] in shown:
            times, gpus = zip(*row["gpus"], strict=True)
            axes.step([at_s / 60 for at_s in times], gpus, where="post", label=row["name"])
    axes.set(xlabel="minutes", ylabel="GPUs held", ylim=(0, MOST + 0.5))
    axes.legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workload", default="day", help="comma separated: day (default), azure")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default 1)")
    parser.add_argument("--startup", type=float, default=60.0, help="seconds until a replica takes requests")
    options = parser.parse_args()
    results, tables = [], []
    with ProcessPoolExecutor(options.jobs) as workers:
        for workload in options.workload.split(","):
            wanted = trials(workload, options.startup)
            running = {workers.submit(run, trial): trial.name for trial in wanted}
            found = {}
            for done in as_completed(running):
                found[running[done]] = done.result()
                print(json.dumps({**done.result(), "gpus": None}), flush=True)
            rows = [found[trial.name] for trial in wanted]
            tables.append(table(workload, rows))
            chosen = best(rows, rows[0]["attained %"]) or "HPA, in flight 16"
            draw(rows, ["penstock", chosen], RESULTS / f"autoscaling-{workload}.svg")
            results += rows
    RESULTS.joinpath("autoscaling.json").write_text(json.dumps(results, indent=1) + "\n")
    RESULTS.joinpath("autoscaling.md").write_text("\n\n".join(tables) + "\n")
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
