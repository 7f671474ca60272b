"""The pages of `bench/prefix.py`, written from its rows: `bench/results/prefix.md` and a summary in the docs.

Missing searches are listed. The best rival of a cell is the best of those that were searched. If some were
not, the row says so, and the mean of the ratios does not include the cell.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import orjson
from capacity_page import geometric_mean
from capacity_rows import CapacityRows
from penstock_cli.capacity.search import ANY_RATE_RPS, CapacityResult
from penstock_cli.capacity.trial import with_sessions
from penstock_cli.replay.report import number
from penstock_simulator.prefix_cache.block_keys import recorded_keys
from penstock_simulator.scenarios import arrivals, scenario
from prefix_cells import CELLS, CONTENDERS, OURS, Cell, Contender

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "bench" / "results" / "prefix.md"
WITHOUT = ROOT / "bench" / "results" / "prefix-without.json"
RATES = ROOT / "bench" / "results" / "prefix-rates.json"
RESEARCH = ROOT / "docs" / "results-prefix.md"
SECTION = re.compile(r"(<!-- prefix: summary -->\n).*?(<!-- end -->)", re.DOTALL)

HEADS = (
    "contender",
    "requests/s a replica",
    "not at",
    "of ours",
    "admitted that kept their SLO, %",
    "cached, %",
    "of an unbounded cache",
    "busiest replica",
    "order, tuned to",
)


@dataclass(frozen=True, slots=True)
class BestRouting:
    """The result of a contender in a cell: the best of its rules. searched: number of searched rules."""

    contender: Contender
    best: CapacityResult
    searched: int


def write_pages(rows: CapacityRows) -> None:
    """Write both pages."""
    PAGE.write_text(page_of(rows))
    text = RESEARCH.read_text()
    RESEARCH.write_text(
        SECTION.sub(lambda match: match[1] + "\n".join(summary(rows)) + "\n" + match[2], text)
    )


def page_of(rows: CapacityRows) -> str:
    """Return the page with all tables."""
    tables = ["\n".join(section(cell, found)) for cell in CELLS if (found := found_in(cell, rows))]
    head = [
        "# Prefix caches: capacities under each system's routing\n",
        "`make bench-prefix` wrote this page. What the figures mean: "
        "[results](../../docs/results-prefix.md).\n",
        *summary(rows),
        "",
    ]
    return "\n".join([*head, *tables, *at_rates(), *missing(rows)])


def found_in(cell: Cell, rows: CapacityRows) -> list[BestRouting]:
    """Return the results in a cell, by contender."""
    found = []
    for contender in CONTENDERS:
        answers = [a for question in cell.questions(contender) if (a := rows.answer(question)) is not None]
        if answers:
            best = max(answers, key=lambda answer: (answer.low_rps, answer.high_rps))
            found.append(BestRouting(contender, best, len(answers)))
    return found


def ours_and_best_rival(found: Sequence[BestRouting]) -> tuple[CapacityResult, BestRouting] | None:
    """Return our result and the best rival's; None if the cell lacks one of them."""
    ours = next((one.best for one in found if one.contender.name == OURS), None)
    rivals = [one for one in found if one.contender.name != OURS and one.best.low_rps > 0]
    if ours is None or not rivals:
        return None
    return ours, max(rivals, key=lambda one: one.best.low_rps)


def section(cell: Cell, found: Sequence[BestRouting]) -> Iterator[str]:
    """Yield the table of a cell, the highest capacity first."""
    ours = next((one.best.low_rps for one in found if one.contender.name == OURS), 0.0)
    bound = unbounded_share(cell)
    requests = found[0].best.requests
    yield f"## {cell.title}\n"
    yield f"{requests} requests; an unbounded shared cache would hold {100 * bound:.1f} % of prompt tokens.\n"
    yield from (f"| {' | '.join(line)} |" for line in [HEADS, ["---", *["--:"] * 7, "---"]])
    for one in sorted(found, key=lambda one: (-one.best.low_rps, -one.best.high_rps)):
        best = one.best
        known = best.low_rps > 0
        share = number((best.low_rps or best.high_rps) / ours if ours else None, 1, 2)
        cells = [
            one.contender.name,
            rate(best),
            "–" if unbounded(best) or not known else f"{best.high_rps:.4g}",
            share if known else f"< {share}",
            number(best.admitted_attainment, 100, 2),
            number(best.cached_share, 100, 1),
            number(None if best.cached_share is None else best.cached_share / bound, 1, 3),
            number(best.imbalance, 1, 2),
            f"{best.question.conditions.order}, {best.setting}{_of_rules(one)}" if known else "–",
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""


def unbounded(answer: CapacityResult) -> bool:
    """Return whether the highest searched rate attains."""
    return answer.high_rps <= answer.low_rps


def rate(answer: CapacityResult) -> str:
    """Return a capacity in words; its upper limit, if only that is known."""
    if answer.low_rps == 0:
        return f"< {answer.high_rps:.4g}"
    return f"{'≥ ' if unbounded(answer) else ''}{answer.low_rps:.4g}"


def _of_rules(one: BestRouting) -> str:
    rules = len(one.contender.orders)
    return "" if one.searched == rules else f" ({one.searched} of {rules} rules searched)"


def rivals_left(found: Sequence[BestRouting]) -> int:
    """Return the number of rivals with a rule that was not searched."""
    whole = {one.contender.name for one in found if one.searched == len(one.contender.orders)}
    return sum(contender.name not in {OURS, *whole} for contender in CONTENDERS)


def summary(rows: CapacityRows) -> list[str]:
    """Return the summary of cells in which both sides were searched."""
    cells = [(cell, found_in(cell, rows)) for cell in CELLS]
    pairs = [
        (cell, rivals_left(found), *pair) for cell, found in cells if (pair := ours_and_best_rival(found))
    ]
    if not pairs:
        return ["No cell was searched yet.", *without_lines()]
    lines = [
        "| cell | ours, requests/s a replica | best rival | its rate | ratio | admitted kept, % | cached, % "
        "| rival's, % | busiest replica | rival's |",
        "| --- | --: | --- | --: | --: | --: | --: | --: | --: | --: |",
        *(row_of(*pair) for pair in pairs),
    ]
    whole = [(ours, rival.best) for _, left, ours, rival in pairs if not left]
    ratios = [ours.low_rps / rival.low_rps for ours, rival in whole if not unbounded(rival)]
    mean = f"{len(whole)} of {len(CELLS)} cells searched with all rivals"
    if ratios:
        mean += f", geometric mean of {len(ratios)} ratio{'s' if len(ratios) > 1 else ''} "
        mean += f"{geometric_mean(ratios):.2f}×"
    kept = [ours.admitted_attainment for *_, ours, _ in pairs if ours.admitted_attainment is not None]
    least = f"; fewest admitted requests that kept their SLO: {100 * min(kept):.2f} %" if kept else ""
    return [*lines, "", f"{mean}{least}.", *without_lines()]


def row_of(cell: Cell, left: int, ours: CapacityResult, rival: BestRouting) -> str:
    """Return a cell's row. left: number of rivals that were not searched, or not with all rules."""
    best = rival.best
    columns = [
        f"{cell.title} ({left} rival{'s' if left > 1 else ''} not searched)" if left else cell.title,
        rate(ours),
        rival.contender.name,
        rate(best),
        ratio_of(ours, best),
        number(ours.admitted_attainment, 100, 2),
        number(ours.cached_share, 100, 1),
        number(best.cached_share, 100, 1),
        number(ours.imbalance, 1, 2),
        number(best.imbalance, 1, 2),
    ]
    return f"| {' | '.join(columns)} |"


def ratio_of(ours: CapacityResult, rival: CapacityResult) -> str:
    """Return the ratio of two capacities; none if the rival's has no upper limit."""
    if unbounded(rival):
        return "–"
    return f"**{'≥ ' if unbounded(ours) else ''}{ours.low_rps / rival.low_rps:.2f}×**"


def without_lines() -> list[str]:
    """Return lines about the effect of prefix caches on prompts without shared prefixes."""
    if not WITHOUT.exists():
        return []
    rows = orjson.loads(WITHOUT.read_bytes())
    lines = ["", "Where prompts share nothing, attained with engines that cache prefixes, and without:", ""]
    for row in rows:
        on, off = 100 * row["on"], 100 * row["off"]
        rate_rps = row["rate_rps"]
        lines.append(f"- {row['scenario']} at {rate_rps:g} requests/s: {on:.2f} % with, {off:.2f} % without")
    return lines


def at_rates() -> list[str]:
    """Return untuned attainments of every contender at some rates."""
    rows = orjson.loads(RATES.read_bytes()) if RATES.exists() else []
    lines = []
    for title, rate_rps in dict.fromkeys((row["cell"], row["rate_rps"]) for row in rows):
        alike = [row for row in rows if (row["cell"], row["rate_rps"]) == (title, rate_rps)]
        lines += [f"## {title}, all at {rate_rps:g} requests/s a replica\n"]
        lines += [f"{alike[0]['requests']} requests. Each with one setting, not tuned.\n"]
        lines += [
            "| contender | attained, % | of admitted, % | cached, % | busiest replica | tokens a step |"
        ]
        lines += ["| --- | --: | --: | --: | --: | --: |"]
        for row in sorted(alike, key=lambda row: -row["attained"]):
            figures = [
                number(row["attained"], 100, 2),
                number(row["admitted_attainment"], 100, 2),
                number(row["cached_share"], 100, 1),
                number(row["imbalance"], 1, 2),
                str(row["batch_tokens"]),
            ]
            lines.append(f"| {row['contender']} | {' | '.join(figures)} |")
        lines.append("")
    return lines


def missing(rows: CapacityRows) -> list[str]:
    """Return lines about missing searches."""
    lines = []
    for cell in CELLS:
        searched = [one.contender.name for one in found_in(cell, rows)]
        left = [contender.name for contender in CONTENDERS if contender.name not in searched]
        if left:
            what = "all" if not searched else "; ".join(left)
            lines.append(f"- {cell.title}: {what}")
    return ["## Not searched yet\n", *lines, ""] if lines else []


@cache
def unbounded_share(cell: Cell) -> float:
    """Return the share of prompt tokens in leading full blocks that occur in an earlier request."""
    here = with_sessions(scenario(cell.scenario + cell.engine), cell.sessions)
    seen: set[object] = set()
    prompt_tokens = cached_tokens = 0
    for arrival in arrivals(here, ANY_RATE_RPS, seed=0, laps=cell.replicas):
        tokens, block = arrival.prompt_tokens, here.block_tokens
        keys = recorded_keys(arrival.hash_ids, arrival.hash_id_tokens, tokens, block, arrival.salt)
        most = (tokens - 1) // block
        found = next(
            (place for place, key in enumerate(keys[:most]) if key not in seen), min(len(keys), most)
        )
        prompt_tokens, cached_tokens = prompt_tokens + tokens, cached_tokens + found * block
        seen.update(keys)
    return cached_tokens / prompt_tokens
