"""The capacity tables: every policy in every scenario, baselines at their best.

    python bench/capacity.py [--only known] [--jobs 2]

Prints the tables and writes `bench/results/capacity.{json,md,svg}`. Simulations are remembered in
`.venv/capacity.jsonl`, so a run that was stopped goes on. Each search begins where the table before has it,
and goes as far from there as it takes.

vLLM's own scheduler takes the same steps as `vllm`, ten times slower. So it is not searched for: where it is
installed (`make vllm-env`) it runs where each search of `vllm` ended, and what both attain there is printed.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from time import monotonic

import orjson
from penstock_cli.capacity.memory import Memory
from penstock_cli.capacity.picture import draw
from penstock_cli.capacity.question import Conditions, Question
from penstock_cli.capacity.report import as_json, capacity_rps, meaning, table, where_it_ended
from penstock_cli.capacity.search import NOBODY_GIVES_UP, Answer, Probe, Trials, capacity
from penstock_cli.capacity.sweep import sweep
from penstock_cli.capacity.trial import Tally, trial_of
from penstock_cli.capacity_command import Run
from penstock_simulator.real_vllm.location import folder
from penstock_simulator.simulation import Lengths
from penstock_simulator.truth import TruthKind
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"

PAPER = ("chatbot", "coder", "summarizer", "toolllm", "reasoning", "mixed")
OTHERS = ("arxiv", "mooncake", "servegen-reasoning")
SCALED = ("chatbot", "coder", "toolllm")
MAIN = ("slos-serve", "vllm", "sarathi")
PAPERS = ("sola", "accelgen", "annealing")
NEWER = ("qoserve-spec", "fluidserve-spec")
BASELINES = ("vllm-spec", "distserve", "vllm-legacy", "sjf", "fastserve", "orca", "fcfs")

KNOWN = Conditions(1, 0.9, Lengths.KNOWN, TruthKind.EXACT, 3, "round-robin")
PREDICTED = replace(KNOWN, lengths=Lengths.PREDICTED, truth=TruthKind.MEASURED)
ONE_SAMPLE = replace(KNOWN, seeds=1)
FOUR = replace(KNOWN, replicas=4, seeds=1)


@dataclass(frozen=True, slots=True)
class Part:
    """One table."""

    conditions: Conditions
    scenarios: tuple[str, ...]
    policies: tuple[str, ...]

    def questions(self) -> list[Question]:
        return [Question(s, p, self.conditions) for s in self.scenarios for p in self.policies]


PARTS = {
    "known": Part(KNOWN, PAPER, MAIN),
    "predicted": Part(PREDICTED, PAPER, MAIN),
    "bound": Part(ONE_SAMPLE, PAPER, ("slos-serve", "oracle")),
    "four": Part(FOUR, SCALED, ("slos-serve",)),
    "papers": Part(ONE_SAMPLE, PAPER, PAPERS),
    "baselines": Part(ONE_SAMPLE, PAPER, BASELINES),
    "newer": Part(ONE_SAMPLE, PAPER, NEWER),
    "others": Part(replace(PREDICTED, seeds=1), OTHERS, MAIN),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="this table; repeatable")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    parts = {name: PARTS[name] for name in options.only or PARTS}
    began_s = monotonic()
    with Memory(ROOT / ".venv" / "capacity.jsonl") as memory:
        run = Run(memory, options.jobs)
        questions = [question for part in parts.values() for question in part.questions()]
        before = where_they_ended()
        answers = run.all([capacity(question, before.get(question)) for question in questions], "capacities")
        answered = dict(zip(questions, answers, strict=True))
        tables = {name: [answered[q] for q in part.questions()] for name, part in parts.items()}
        drawn = tables[next(iter(parts))]
        sweeps = run.all([sweep(answer) for answer in drawn], "curves")
        beside = run.all([beside_vllm(a) for a in answers if to_compare(a)], "vLLM's own scheduler")
    write(parts, tables, beside, monotonic() - began_s)
    draw(drawn, sweeps, RESULTS / "capacity.svg")


def where_they_ended() -> dict[Question, Probe]:
    """Of the table that is there: searches begin where the last ones ended."""
    table = RESULTS / "capacity.json"
    return dict(map(where_it_ended, orjson.loads(table.read_bytes()))) if table.exists() else {}


def to_compare(answer: Answer) -> bool:
    """Whether vLLM's own scheduler is run beside this answer."""
    asked = answer.question
    return asked.policy == "vllm" and asked.scenario in PAPER and answer.low_rps > 0 and folder().exists()


def beside_vllm(answer: Answer) -> Trials[str]:
    """What vLLM's own scheduler attains in the first sample where the search of `vllm` ended."""
    both = [replace(answer.question, policy=policy) for policy in ("vllm", "vllm-real")]
    tallies = yield [trial_of(q, answer.setting, answer.low_rps, 0, NOBODY_GIVES_UP) for q in both]
    ours, real = (attained(tally) for tally in tallies)
    asked = answer.question.conditions
    where = f"{answer.question.scenario}, {asked.lengths.value} lengths, {asked.truth.value} truth"
    return f"{where}, {answer.low_rps:g} req/s, {answer.setting}: vllm {ours}, vllm-real {real}"


def attained(tally: Tally) -> str:
    """In percent, of all."""
    return f"{100 * (1 - tally.missed / tally.requests):.1f} %"


def write(
    parts: dict[str, Part], tables: dict[str, list[Answer]], beside: Sequence[str], took_s: float
) -> None:
    """What was found, for people on the terminal and in a page, for programs as JSON."""
    rows = [row for answers in tables.values() for row in as_json(answers)]
    (RESULTS / "capacity.json").write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2) + b"\n")
    page = Console(width=130, record=True)
    for name, part in parts.items():
        page.print(table(tables[name], part.conditions))
        page.print(meaning(part.conditions))
        for line in ratios(tables[name]):
            page.print(line)
        page.print()
    for line in beside:
        page.print(line)
    page.print(f"{took_s / 60:.0f} minutes with {os.cpu_count()} cores, less what was remembered.")
    text = "\n".join(line.rstrip() for line in page.export_text().splitlines())
    (RESULTS / "capacity.md").write_text(
        f"# Capacity\n\n`make bench-capacity` printed:\n\n```\n{text}\n```\n"
    )


def ratios(answers: Sequence[Answer]) -> list[str]:
    """SLOs-Serve against the better of the two baselines that it was published against."""
    rates = {(a.question.scenario, a.question.policy): capacity_rps(a) for a in answers}
    names = list(dict.fromkeys(scenario for scenario, _ in rates))
    rivals = [p for p in ("vllm", "sarathi") if (names[0], p) in rates]
    if not rivals or (names[0], "slos-serve") not in rates:
        return []
    gains = {n: gain(rates[n, "slos-serve"], max(rates[n, p] for p in rivals)) for n in names}
    listed = ", ".join(f"{name} {value:.2f}" for name, value in gains.items())
    mean = prod(gains.values()) ** (1 / len(gains))
    return [f"slos-serve / the better of {', '.join(rivals)}: {listed}; geometric mean {mean:.2f}"]


def gain(rate_rps: float, than_rps: float) -> float:
    return rate_rps / than_rps if than_rps > 0 else float("inf")


if __name__ == "__main__":
    main()
