"""Writes the capacities in README.md and docs/results.md from the rows.

    python bench/capacity_docs.py [--check]

Fills the sections between `<!-- capacity: NAME -->` and `<!-- end -->`, and each policy's rows
(`policy_rows.py`). With `--check` it writes nothing, lists the pages that differ, and fails if there are
any.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import policy_rows
from capacity_page import Versus, geometric_mean, in_markdown, in_words, versus
from capacity_parts import (
    AS_IN_PAPERS,
    AT_BEST,
    DISTSERVE,
    KNOWN,
    ONE_SAMPLE,
    OURS,
    PAPER,
    PARTS,
    PREDICTED,
    STRONGEST,
    PagePart,
)
from capacity_rows import CapacityRows
from penstock_cli.capacity.question import Question, SearchConditions
from penstock_cli.capacity.report import capacity_rps
from penstock_cli.capacity.setting import ORACLE, SPECULATING, grid_of
from penstock_simulator.scenarios import scenario

ROOT = Path(__file__).resolve().parents[1]
FILLED = (ROOT / "README.md", ROOT / "docs" / "results.md")
SECTION = re.compile(r"(<!-- capacity: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
LEADING = ("best", "predicted-best", "kernels")
"""Tables that compare slos-serve with other tuned policies."""

AHEAD = 1.05
"""Lowest ratio that counts as a lead, because searches of the same question differ by a few percent."""

Lines = Sequence[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say which pages differ")
    options = parser.parse_args()
    rows = CapacityRows(policy_rows.TABLE)
    pages = {path: filled(path.read_text(), rows) for path in FILLED}
    pages |= {path: policy_rows.written(path, rows) for path in policy_rows.pages()}
    stale = [path for path, text in pages.items() if path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} {'differs from the rows' if options.check else 'written'}")
        if not options.check:
            path.write_text(pages[path])
    sys.exit(bool(stale) and options.check)


def filled(text: str, rows: CapacityRows) -> str:
    """Return the text with each section written from the rows. Raises KeyError for an unknown section."""
    return SECTION.sub(lambda match: match[1] + "\n".join(SECTIONS[match[2]](rows)) + "\n" + match[3], text)


def lead(rows: CapacityRows) -> Lines:
    """Return slos-serve over the best other policy, and over vLLM as in the paper, a line each."""
    known, predicted, kernels = (versus(PARTS[name], rows) for name in LEADING)
    as_paper = as_in_paper(PREDICTED, rows)
    return [
        f"- over the best of all other policies, each tuned; known lengths, exact timing: {times(known)}"
        f"{with_distserve(known)}",
        f"- the same with predicted lengths and measured timing: {times(predicted)}",
        f"- the same on engines with measured kernel tables: {times(kernels)}",
        f"- over vLLM's scheduling without a drafter, as in the paper; predicted, measured: "
        f"{times(as_paper)}",
        *still_open(rows),
    ]


def times(found: Sequence[Versus]) -> str:
    """Return the geometric mean and the span of ratios."""
    if not found:
        return "not searched yet"
    ratios = [one.ratio for one in found]
    if len(found) == 1:
        return f"**{ratios[0]:.2f}×** (only {found[0].scenario} was searched)"
    level = [one.scenario for one in found if one.ratio < AHEAD]
    note = f"; level or behind in {' and '.join(level)}" if level else ""
    span = f"{min(ratios):.2f} to {max(ratios):.2f} in {len(found)} scenarios"
    return f"**{geometric_mean(ratios):.2f}×** ({span}{note})"


def with_distserve(found: Sequence[Versus]) -> str:
    """Return the mean with several GPUs that act as one replica, if there are such rows."""
    if not any(one.distserve_rps for one in found):
        return ""
    mean = geometric_mean(one.ratio_to_all for one in found)
    return f"; {mean:.2f}× if `distserve` counts by its rate per GPU"


def still_open(rows: CapacityRows) -> Lines:
    """Return a line about policies that were not searched yet, because the lead may shrink."""
    requested = [question for name in LEADING for question in PARTS[name].questions()]
    missing = sum(rows.answer(question) is None for question in requested)
    return [
        f"- {missing} of these {len(requested)} searches are still to be made: "
        "until then the first three are upper bounds"
    ] * bool(missing)


def as_in_paper(conditions: SearchConditions, rows: CapacityRows) -> list[Versus]:
    """Compare slos-serve with the better of vllm and sarathi without a drafter, as its paper does."""
    part = PagePart("", conditions, PAPER, (OURS, "vllm", "sarathi"))
    return versus(part, rows, drafters=False)


def best_section(name: str) -> Callable[[CapacityRows], Lines]:
    """Return the writer of a table of ratios over the best other policy, with missing searches."""

    def lines(rows: CapacityRows) -> Lines:
        part = PARTS[name]
        missing = [question for question in part.questions() if rows.answer(question) is None]
        note = ["", f"Not searched yet: {in_words(missing)}."] if missing else []
        return [*in_markdown(versus(part, rows)), *note]

    return lines


def paper_section(rows: CapacityRows) -> Lines:
    """Return the paper's own comparison, with known and exact and with predicted and measured."""
    known, predicted = (as_in_paper(conditions, rows) for conditions in (KNOWN, PREDICTED))
    cells = [
        [
            one.scenario,
            *[f"{one.ours_rps:.3g}", f"{one.best_rps:.3g}", f"**{one.ratio:.2f}×**"],
            *[f"{other.ours_rps:.3g}", f"{other.best_rps:.3g}", f"**{other.ratio:.2f}×**"],
        ]
        for one, other in zip(known, predicted, strict=True)
    ]
    means = (f"**{geometric_mean(one.ratio for one in found):.2f}×**" for found in (known, predicted))
    mean = ["geometric mean", *(cell for text in means for cell in ("", "", text))]
    heads = [
        "req/s per replica",
        *["known lengths, exact timing: slos-serve", "vllm = sarathi", "ratio"],
        *["predicted, measured: slos-serve", "vllm = sarathi", "ratio"],
    ]
    return in_table(heads, [*cells, mean])


def all_policies(rows: CapacityRows) -> Lines:
    """Return tuned capacities of all policies, the highest sum first."""
    lines = {name: [best_cell(rows, name, s) for s in PAPER] for name in (OURS, *AT_BEST)}
    names = sorted(lines, key=lambda name: -sum(rate for rate, _ in lines[name]))
    cells = [[shown(name), *(text for _, text in lines[name])] for name in names]
    bound = ["[bound](policies/oracle.md)", *(best_cell(rows, ORACLE, s)[1] for s in PAPER)]
    return in_table(["", *PAPER], [bound, *cells])


def bound_shares(rows: CapacityRows) -> Lines:
    """Return the tuned capacity of each strong policy as a share of the bound."""
    bound_rps = {name: best_cell(rows, ORACLE, name)[0] for name in PAPER}
    cells = []
    for policy in (OURS, *STRONGEST, "sola-spec"):
        shares = [f"{100 * best_cell(rows, policy, name)[0] / bound_rps[name]:.0f} %" for name in PAPER]
        cells.append([policy.removesuffix(SPECULATING), *shares])
    return in_table(["", *PAPER], [["bound, req/s", *(f"{rate:.3g}" for rate in bound_rps.values())], *cells])


def shown(policy: str) -> str:
    name = policy.removesuffix(SPECULATING)
    return "distserve (per GPU)" if policy == DISTSERVE else f"[{name}](policies/{name}.md)"


def best_cell(rows: CapacityRows, policy: str, name: str) -> tuple[float, str]:
    """Return the higher of the policy's rates with a drafter and without, and its text."""
    plain = policy.removesuffix(SPECULATING)
    found = {p: rows.answer(Question(name, p, ONE_SAMPLE)) for p in dict.fromkeys((policy, plain))}
    rates = {p: capacity_rps(answer) for p, answer in found.items() if answer is not None}
    if not rates:
        return 0.0, "not searched yet"
    best_rps = max(rates.values())
    return best_rps, f"{best_rps:.3g}"


def as_published(rows: CapacityRows) -> Lines:
    """Return capacities without a drafter, as the papers compare them."""

    def text(policy: str, name: str, conditions: SearchConditions) -> str:
        answer = rows.answer(Question(name, policy, conditions))
        return "not searched yet" if answer is None else f"{capacity_rps(answer):.3g}"

    cells = [[policy, *(text(policy, name, ONE_SAMPLE) for name in PAPER)] for policy in AS_IN_PAPERS]
    vllm = ["vllm = sarathi (three samples)", *(text("vllm", name, KNOWN) for name in PAPER)]
    return in_table(["", *PAPER], [vllm, *cells])


def grids(_: CapacityRows) -> Lines:
    """Return the settings that were tried for each policy."""
    coder = scenario("coder")
    tried = {policy: grid_of(policy, coder) for policy in AT_BEST}
    cells = [
        [
            policy.removesuffix(SPECULATING),
            ", ".join(map(str, grid.budgets_tokens)),
            ", ".join(map(str, grid.drafts)),
            "; ".join([*(f"GPUs {r}" for r in grid.ratios if r), *(f"{n} slots" for n in grid.slots if n)])
            or "–",
        ]
        for policy, grid in tried.items()
    ]
    return in_table(["policy", "token budgets", "draft tokens", "other"], cells, left=4)


def in_table(heads: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> Lines:
    rule = ["---"] * left + ["--:"] * (len(heads) - left)
    return [f"| {' | '.join(line)} |" for line in (heads, rule, *lines)]


SECTIONS: Mapping[str, Callable[[CapacityRows], Lines]] = {
    "lead": lead,
    "best-predicted": best_section("predicted-best"),
    "best-known": best_section("best"),
    "kernels": best_section("kernels"),
    "as-in-paper": paper_section,
    "all-policies": all_policies,
    "bound": bound_shares,
    "as-published": as_published,
    "grids": grids,
}


if __name__ == "__main__":
    main()
