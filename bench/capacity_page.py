"""The page of the capacity tables, written from their rows: first slos-serve over the best other policy.

Cells that were not searched yet are listed. The best other policy is the best of those that were searched.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from capacity_parts import DISTSERVE, OURS, PagePart
from capacity_rows import CapacityRows
from penstock_cli.capacity.question import Question, SearchConditions
from penstock_cli.capacity.report import capacity_rps, summary_line, table
from penstock_cli.capacity.search import CapacityResult
from penstock_cli.capacity.setting import ORACLE, SPECULATING
from rich.console import Console

WIDTH = 140


@dataclass(frozen=True, slots=True)
class Versus:
    """slos-serve in one scenario, the best other policy of one replica, and distserve's rate per GPU.

    searched: number of the table's other policies that were searched. of: their total number.
    """

    scenario: str
    ours_rps: float
    best: str
    best_rps: float
    distserve_rps: float | None
    searched: int
    of: int

    @property
    def ratio(self) -> float:
        """Capacity of slos-serve over that of the best other policy of one replica."""
        return self.ours_rps / self.best_rps

    @property
    def ratio_to_all(self) -> float:
        """Capacity of slos-serve over that of the best other policy, including distserve."""
        return self.ours_rps / max(self.best_rps, self.distserve_rps or 0.0)


def page_of(parts: Mapping[str, PagePart], rows: CapacityRows) -> str:
    """Return the whole page."""
    sections = [section(part, rows) for part in parts.values()]
    return "\n".join(["# Capacity\n", "`make bench-capacity` wrote this page.\n", *sections])


def section(part: PagePart, rows: CapacityRows) -> str:
    """Return one table: ratios if the part has them, then every row, then missing searches."""
    requested = part.questions()
    answers = [answer for question in requested if (answer := rows.answer(question))]
    lines = [f"## {part.title}\n"]
    if part.versus_best:
        lines += [*in_markdown(versus(part, rows)), ""]
    if answers:
        lines.append(f"```\n{printed(answers, part.conditions)}\n```\n")
    if missing := [question for question in requested if rows.answer(question) is None]:
        lines.append(f"Not searched yet: {in_words(missing)}.\n")
    return "\n".join(lines)


def versus(part: PagePart, rows: CapacityRows, *, drafters: bool = True) -> list[Versus]:
    """Compare slos-serve with the best other policy, in scenarios in which a tuned one was searched.

    A policy counts with its drafter or without, whichever has the higher rate. drafters: False for without.
    """
    return [found for name in part.scenarios if (found := _versus(part, rows, name, drafters))]


def _versus(part: PagePart, rows: CapacityRows, scenario: str, drafters: bool) -> Versus | None:
    def rate_rps(policy: str) -> float | None:
        answer = rows.answer(Question(scenario, policy, part.conditions))
        return None if answer is None else capacity_rps(answer)

    rivals = {policy.removesuffix(SPECULATING) for policy in part.policies} - {OURS, ORACLE}
    names = [*rivals, *(f"{name}{SPECULATING}" for name in rivals if drafters)]
    rates = {name: rate for name in sorted(names) if (rate := rate_rps(name))}
    distserve = [rates.pop(name, 0.0) for name in (DISTSERVE, DISTSERVE.removesuffix(SPECULATING))]
    at_best = [policy for policy in part.policies if policy not in {OURS, ORACLE}]
    searched = sum(rate_rps(policy) is not None for policy in at_best)
    ours_rps = rate_rps(OURS)
    if not ours_rps or not rates or not searched:
        return None
    best = max(rates, key=rates.__getitem__)
    return Versus(scenario, ours_rps, best, rates[best], max(distserve) or None, searched, len(at_best))


def in_markdown(found: Sequence[Versus]) -> list[str]:
    """Return the lines of a table, with the geometric means below."""
    if not found:
        return ["Nothing to compare yet."]
    split = any(one.distserve_rps for one in found)
    open_cells = any(one.searched < one.of for one in found)
    heads = ["scenario", "slos-serve", "best other", "its rate", "ratio"]
    heads += ["distserve, per GPU"] * split + ["rivals searched"] * open_cells
    cells = [
        [
            one.scenario,
            f"{one.ours_rps:.3g}",
            one.best,
            f"{one.best_rps:.3g}",
            f"**{one.ratio:.2f}×**",
            *([f"{one.distserve_rps:.3g}" if one.distserve_rps else "–"] * split),
            *([f"{one.searched} of {one.of}"] * open_cells),
        ]
        for one in found
    ]
    lines = [heads, ["---", "--:", "---", "--:", "--:", *(["--:"] * (len(heads) - 5))], *cells]
    mean = f"Geometric mean of {len(found)}: {geometric_mean(one.ratio for one in found):.2f}×"
    to_all = geometric_mean(one.ratio_to_all for one in found)
    also = f"; {to_all:.2f}× where distserve counts by its rate per GPU" if split else ""
    return [*(f"| {' | '.join(line)} |" for line in lines), "", f"{mean}{also}."]


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of ratios."""
    all_values = list(values)
    return float(prod(all_values) ** (1 / len(all_values)))


def printed(answers: Sequence[CapacityResult], conditions: SearchConditions) -> str:
    """Return the table as it is printed in a terminal."""
    console = Console(width=WIDTH, file=io.StringIO())
    console.print(table(answers, conditions))
    console.print(summary_line(conditions))
    text = console.file
    assert isinstance(text, io.StringIO)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def in_words(missing: Sequence[Question]) -> str:
    """Return questions by policy: `sola in chatbot, coder; sjf in mixed`."""
    policies = dict.fromkeys(question.policy for question in missing)
    return "; ".join(
        f"{policy} in {', '.join(q.scenario for q in missing if q.policy == policy)}" for policy in policies
    )
