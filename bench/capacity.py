"""The capacity tables: every policy in every scenario, other policies as in their papers and tuned.

    python bench/capacity.py [--only best] [--scenario coder] [--policy sola-spec] [--missing] [--jobs 2]
    python bench/capacity.py --page

Searches questions without a row in `bench/results/capacity.json`, then those whose row was found by other
code, and adds each row when it is found; then writes the page `capacity.md` and the figure of the lead.
Simulations are stored in `.venv/capacity.jsonl`, so a stopped run can be resumed. Each search begins at the
previous row's result. `--missing` does not search rows of other code, `--page` searches nothing.

With `--curves` the figure of attainment by rate is drawn again (a hundred simulations). vLLM's own scheduler
takes the same steps as `vllm` in ten times the time, so it is not searched. If it is installed (`make
vllm-env`), `--curves` also runs it at the result of each search of `vllm`, and prints both attainments.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from capacity_bars import draw_lead
from capacity_page import page_of
from capacity_parts import KNOWN, MAIN, PAPER, PARTS, PREDICTED, PagePart
from capacity_rows import CapacityRows
from penstock_cli.capacity.plot import draw
from penstock_cli.capacity.question import Question
from penstock_cli.capacity.sampled_question import NO_MISS_LIMIT, RateProbe, Trials
from penstock_cli.capacity.search import CapacityResult, capacity
from penstock_cli.capacity.sweep import sweep
from penstock_cli.capacity.trial import TrialResult, trial_of
from penstock_cli.capacity.trial_log import TrialLog
from penstock_cli.commands.capacity import SearchRun
from penstock_simulator.real_vllm.location import folder

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"


def main() -> None:
    options = parsed()
    rows = CapacityRows(RESULTS / "capacity.json")
    wanted = [] if options.page else questions(options, rows)
    with TrialLog(ROOT / ".venv" / "capacity.jsonl") as memory:
        run = SearchRun(memory, options.jobs)
        searches = [capacity(question, previous_end(rows, question)) for question in wanted]
        run.all(searches, "capacities", rows.add)
        (RESULTS / "capacity.md").write_text(page_of(PARTS, rows))
        draw_lead(rows, RESULTS / "capacity-best.svg")
        if options.curves:
            draw_curves(run, rows)
            check_against_vllm(run, rows)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="this table; repeatable")
    parser.add_argument("--scenario", action="append", help="this scenario; repeatable")
    parser.add_argument("--policy", action="append", help="this policy; repeatable")
    parser.add_argument("--missing", action="store_true", help="only what was never searched")
    parser.add_argument("--page", action="store_true", help="search nothing")
    parser.add_argument("--curves", action="store_true", help="draw the picture, run vLLM's own scheduler")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def questions(options: argparse.Namespace, rows: CapacityRows) -> list[Question]:
    """Return the questions to search: first those without a row, then those with a row of other code."""
    parts: list[PagePart] = [PARTS[name] for name in options.only or PARTS]
    wanted = [
        question
        for question in dict.fromkeys(question for part in parts for question in part.questions())
        if (not options.scenario or question.scenario in options.scenario)
        and (not options.policy or question.policy in options.policy)
    ]
    missing = [question for question in wanted if rows.answer(question) is None]
    stale = [question for question in wanted if rows.answer(question) and not rows.current(question)]
    return missing if options.missing else [*missing, *stale]


def previous_end(rows: CapacityRows, question: Question) -> RateProbe | None:
    """Return the result of the previous search, if there was one."""
    answer = rows.answer(question)
    return None if answer is None else RateProbe(answer.setting, answer.low_rps)


def draw_curves(run: SearchRun, rows: CapacityRows) -> None:
    """Draw attainment by rate of the first policies, predicted lengths."""
    drawn = found(rows, [Question(s, p, PREDICTED) for s in PAPER for p in MAIN])
    draw(drawn, run.all([sweep(answer) for answer in drawn], "curves"), RESULTS / "capacity.svg")


def check_against_vllm(run: SearchRun, rows: CapacityRows) -> None:
    """Run vLLM's own scheduler at the result of each search of `vllm`, and print both attainments."""
    wanted = [Question(s, "vllm", conditions) for conditions in (KNOWN, PREDICTED) for s in PAPER]
    answers = [answer for answer in found(rows, wanted) if answer.low_rps > 0 and folder().exists()]
    lines = run.all([beside_vllm(answer) for answer in answers], "vLLM's own scheduler")
    text = "".join(f"{line}\n" for line in lines)
    print(text, end="")
    if lines:
        (RESULTS / "capacity-vllm-real.txt").write_text(text)


def found(rows: CapacityRows, wanted: Sequence[Question]) -> list[CapacityResult]:
    return [answer for question in wanted if (answer := rows.answer(question))]


def beside_vllm(answer: CapacityResult) -> Trials[str]:
    """Return a line with the attainment of vLLM's own scheduler at the result of `vllm`, first sample."""
    both = [replace(answer.question, policy=policy) for policy in ("vllm", "vllm-real")]
    tallies = yield [trial_of(q, answer.setting, answer.low_rps, 0, NO_MISS_LIMIT) for q in both]
    ours, real = (attained(tally) for tally in tallies)
    conditions = answer.question.conditions
    where = f"{answer.question.scenario}, {conditions.lengths.value} lengths, {conditions.truth.value} timing"
    return f"{where}, {answer.low_rps:g} req/s, {answer.setting}: vllm {ours}, vllm-real {real}"


def attained(tally: TrialResult) -> str:
    """Return the attainment in percent."""
    return f"{100 * (1 - tally.missed / tally.requests):.1f} %"


if __name__ == "__main__":
    main()
