"""Measures prefix caching with each system's routing: capacities, cache hits and balance.

    python bench/prefix.py [--cell swe@llama-3-70b-4xh100:4] [--jobs 2] [--missing]
    python bench/prefix.py --cell agents:4 --rate 0.1
    python bench/prefix.py --page
    python bench/prefix.py --without

Searches the capacity of the best rival and of ours in every cell of `prefix_cells.py`: first questions
without a row in `bench/results/prefix.json`, then those whose row was found by other code. Rivals compete:
each tries all its token budgets and thresholds at the lowest rate that the best rival so far does not attain.
If none attains there, this rate is the upper limit of its row; if one does, its capacity is searched, and it
is the best from then on. Our two orders compete in the same way. `--full` searches every capacity instead.

Each row is added when it is found, and simulations are stored in `.venv/prefix.jsonl`, so a stopped run can
be resumed. Then it writes `bench/results/prefix.md` and the summary in `docs/results-prefix.md`. `--missing`
does not search rows of other code, `--page` searches nothing.

`--rate` simulates each contender of the cells once at this rate, with its first rule and its middle token
budget, and stores its attainment in `bench/results/prefix-rates.json`, without a search.

`--without` simulates scenarios without shared prefixes, with prefix caches and without, and stores both
attainments.
"""

import argparse
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import orjson
from capacity_rows import CapacityRows
from penstock_cli.capacity.question import Question
from penstock_cli.capacity.sampled_question import NO_MISS_LIMIT, RateProbe, Trials
from penstock_cli.capacity.search import (
    FINE,
    CapacityResult,
    UnboundedCapacity,
    capacity,
    capacity_above,
    result_of,
    rounded,
)
from penstock_cli.capacity.setting import grid_of
from penstock_cli.capacity.trial import Trial, arrivals_of, fleet_of, requests_in, run_trial, trial_of
from penstock_cli.capacity.trial_log import TrialLog
from penstock_cli.commands.capacity import SearchRun
from penstock_simulator.scenarios import scenario
from penstock_simulator.simulation import simulate
from prefix_cells import CELLS, CONTENDERS, OURS, Cell
from prefix_page import RATES, WITHOUT, write_pages

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
UNSHARED = (("chatbot", 7.1), ("coder", 2.0), ("arxiv", 2.6))
"""Scenarios whose prompts share nothing, and a rate at which `slos-serve` attains about 90 % there."""


def main() -> None:
    options = parsed()
    rows = CapacityRows(RESULTS / "prefix.json")
    if options.rate is not None:
        with TrialLog(ROOT / ".venv" / "prefix.jsonl") as memory:
            for cell in cells(options):
                run_at(memory, cell, options.rate)
    elif options.without:
        WITHOUT.write_bytes(orjson.dumps([*without_prefixes()], option=orjson.OPT_INDENT_2) + b"\n")
    elif not options.page:
        with TrialLog(ROOT / ".venv" / "prefix.jsonl") as memory:
            run = SearchRun(memory, options.jobs)
            for cell, question in questions(options, rows):
                search_one(run, rows, cell, question, full=options.full)
    write_pages(rows)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cell", action="append", help="SCENARIO[@ENGINE]:REPLICAS; repeatable")
    parser.add_argument("--rate", type=float, help="simulate once at this rate, in requests/s a replica")
    parser.add_argument("--missing", action="store_true", help="search only questions without a row")
    parser.add_argument("--full", action="store_true", help="search also what is below the best")
    parser.add_argument("--page", action="store_true", help="search nothing")
    parser.add_argument("--without", action="store_true", help="scenarios without shared prefixes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def cells(options: argparse.Namespace) -> list[Cell]:
    """Return the cells of the command line; all by default."""
    return [cell for cell in CELLS if not options.cell or cell.name in options.cell]


def questions(options: argparse.Namespace, rows: CapacityRows) -> list[tuple[Cell, Question]]:
    """Return the questions to search: first those without a row, then those with a row of other code."""
    wanted = [
        (cell, question)
        for cell in cells(options)
        for contender in CONTENDERS
        for question in cell.questions(contender)
    ]
    missing = [(cell, question) for cell, question in wanted if rows.answer(question) is None]
    stale = [
        (cell, question)
        for cell, question in wanted
        if rows.answer(question) is not None and not rows.current(question)
    ]
    return missing if options.missing else [*missing, *stale]


def run_at(memory: TrialLog, cell: Cell, rate_rps: float) -> None:
    """Simulate every contender of a cell once at a rate, and store the attainments."""
    for contender in CONTENDERS:
        question = cell.question(contender, contender.orders[0])
        setting = grid_of(question.policy, scenario(question.scenario)).start
        trial = trial_of(question, setting, rate_rps, 0, NO_MISS_LIMIT)
        tally = memory.lookup(trial) or run_trial(trial)
        memory.record(trial, tally)
        known = orjson.loads(RATES.read_bytes()) if RATES.exists() else []
        row = {
            "cell": cell.title,
            "rate_rps": rate_rps,
            "contender": contender.name,
            "batch_tokens": setting.batch_tokens,
            "requests": tally.requests,
            "attained": 1 - tally.missed / tally.requests,
            "admitted_attainment": 1 - tally.admitted_missed / tally.admitted if tally.admitted else None,
            "cached_share": tally.cached_tokens / tally.prompt_tokens,
            "imbalance": tally.imbalance,
        }
        same = ("cell", "rate_rps", "contender")
        others = [other for other in known if any(other[name] != row[name] for name in same)]
        RATES.write_bytes(orjson.dumps([*others, row], option=orjson.OPT_INDENT_2) + b"\n")
        print(row, flush=True)


def search_one(run: SearchRun, rows: CapacityRows, cell: Cell, question: Question, *, full: bool) -> None:
    """Search one capacity, or show that it is not above the best of its side in the cell."""
    print(f"{cell.title}: {question.policy}, {question.conditions.order}", flush=True)

    def found(answer: CapacityResult) -> None:
        rows.add(answer)
        of = f"{answer.low_rps:g}" if answer.low_rps else f"< {answer.high_rps:g}"
        print(f"  {of} requests/s, {answer.setting}", flush=True)

    best_rps = 0.0 if full else best_of_side(rows, cell, question)
    if best_rps:
        search = capacity_above(question, best_rps, cell.most_rps)
    else:
        search = capacity(question, start(rows, cell, question), cell.most_rps)
    run.all([bounded(question, search)], "capacities", found)


def best_of_side(rows: CapacityRows, cell: Cell, question: Question) -> float:
    """Return the lowest rate that the best other rule of its side does not attain; 0 for none.

    Sides are ours and all rivals.
    """
    others = (
        answer
        for contender in CONTENDERS
        if (contender.policy == OURS) == (question.policy == OURS)
        for other in cell.questions(contender)
        if other != question and (answer := rows.answer(other)) is not None and answer.low_rps > 0
    )
    best = max(others, key=lambda answer: answer.low_rps, default=None)
    return max(best.high_rps, rounded(best.low_rps * FINE)) if best is not None else 0.0


def bounded(question: Question, search: Trials[CapacityResult]) -> Trials[CapacityResult]:
    """Return the result of a search; if every rate attains, that of the highest rate, without a bound."""
    try:
        return (yield from search)
    except UnboundedCapacity as unbounded:
        probe = unbounded.probe
        (tally,) = yield [trial_of(question, probe.setting, probe.rate_rps, 0, NO_MISS_LIMIT)]
        return result_of(question, probe, [tally])


def start(rows: CapacityRows, cell: Cell, question: Question) -> RateProbe:
    """Return the start of a search: its own result, that of other fleet sizes, or of another rule."""
    same = (
        replace(question, conditions=replace(question.conditions, replicas=size.replicas))
        for size in CELLS
        if replace(size, replicas=cell.replicas) == cell
    )
    alike = (
        other
        for contender in CONTENDERS
        if contender.policy == question.policy
        for other in cell.questions(contender)
    )
    found = (rows.answer(other) for other in (question, *same, *alike))
    answer = next((answer for answer in found if answer is not None and answer.low_rps > 0), None)
    if answer is None:
        return RateProbe(grid_of(question.policy, scenario(question.scenario)).start, cell.start_rps)
    return RateProbe(answer.setting, answer.low_rps)


def without_prefixes() -> Iterator[dict[str, object]]:
    """Yield attainments of `slos-serve` without shared prefixes, with prefix caches and without."""
    for name, rate_rps in UNSHARED:
        workload = scenario(name)
        trial = Trial(name, "slos-serve", 8192, 0, 1, "prefix", "predicted", "measured", rate_rps, 0, 1 << 30)
        drafts = workload.speculation.max_tokens if workload.speculation else 0
        trial = replace(trial, drafts=drafts)
        attained = {}
        for caching in (False, True):
            sample = arrivals_of(trial, workload)
            fleet = replace(fleet_of(trial, workload), prefix_caching=caching)
            met = sum(outcome.met for outcome in simulate(fleet, sample, trial.seed))
            attained[caching] = met / requests_in(sample)
        row = {"scenario": name, "rate_rps": rate_rps, "off": attained[False], "on": attained[True]}
        print(row, flush=True)
        yield row


if __name__ == "__main__":
    main()
