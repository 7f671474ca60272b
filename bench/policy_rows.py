"""Every policy's rows of the capacity table, as the last section of its page in `docs/policies`."""

from collections.abc import Iterator
from pathlib import Path

from capacity_parts import OURS, PAPER, PARTS
from capacity_rows import CapacityRows
from penstock_cli.capacity.question import Question, SearchConditions
from penstock_cli.capacity.report import capacity_rps
from penstock_cli.capacity.search import CapacityResult
from penstock_cli.capacity.setting import BUDGETS_TOKENS, ORACLE, SPECULATING, base_policy
from penstock_simulator.scenarios.catalogue import ON_ENGINE

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "policies"
TABLE = ROOT / "bench" / "results" / "capacity.json"

HEADING = "## Its row of the capacity table\n"
INTRODUCTION = (
    "Requests a second and replica at which 90 % of all requests meet every target; in brackets what it was\n"
    "tuned to ([capacity](../capacity.md), [all rows](../../bench/results/capacity.md)).\n"
)
OPEN = "not searched yet"


def pages() -> list[Path]:
    """Return the policies' pages."""
    return [path for path in sorted(PAGES.glob("*.md")) if path.stem != "README"]


def written(page: Path, found: CapacityRows) -> str:
    """Return the page with its section written from the table; without the section if there are no rows."""
    text = page.read_text().split(HEADING)[0].rstrip() + "\n"
    lines = list(rows(page.stem, found))
    if not lines:
        return text
    heads = ["| |", *(f" {name} |" for name in PAPER), "\n|---|", *("--:|" for _ in PAPER), "\n"]
    return "".join([text, f"\n{HEADING}\n{INTRODUCTION}\n", *heads, *dict.fromkeys(lines)])


def rows(base: str, found: CapacityRows) -> Iterator[str]:
    """Yield a line for each table that has the policy in the paper's scenarios."""
    for part in PARTS.values():
        named = {name.partition(ON_ENGINE)[0]: name for name in part.scenarios}
        for policy in part.policies:
            if base_policy(policy) == base and set(PAPER) & named.keys():
                questions = [_question(named.get(name), policy, part.conditions) for name in PAPER]
                cells = [_cell(question, found) for question in questions]
                on_kernels = ", engine with kernel tables" if set(named) - set(part.scenarios) else ""
                yield f"| {terms(policy, part.conditions)}{on_kernels} | {' | '.join(cells)} |\n"


def terms(policy: str, conditions: SearchConditions) -> str:
    """Return the conditions that a row's figures share."""
    drafting = "" if policy in {OURS, ORACLE} else ", no drafter"
    if policy.endswith(SPECULATING):
        drafting = ", with the drafter"
    fleet = f", {conditions.replicas} replicas" if conditions.replicas > 1 else ""
    samples = f"{conditions.seeds} sample{'s' if conditions.seeds > 1 else ''}"
    return f"{conditions.lengths.value} lengths, {conditions.truth.value} timing{fleet}{drafting}; {samples}"


def _question(scenario: str | None, policy: str, conditions: SearchConditions) -> Question | None:
    return None if scenario is None else Question(scenario, policy, conditions)


def _cell(question: Question | None, found: CapacityRows) -> str:
    if question is None:
        return "–"
    answer = found.answer(question)
    return OPEN if answer is None else cell(answer)


def cell(answer: CapacityResult) -> str:
    """Return a capacity, with its tuned setting if there was a choice."""
    policy, setting = answer.question.policy, answer.setting
    tuned = [
        *([f"{setting.batch_tokens} tokens"] if base_policy(policy) in BUDGETS_TOKENS else []),
        *([f"{setting.drafts} drafts"] if policy.endswith(SPECULATING) else []),
        *([str(setting.ratio)] if setting.ratio else []),
        *([f"{setting.slots} slots"] if setting.slots else []),
    ]
    rate = f"{capacity_rps(answer):.3g}"
    return f"{rate} ({', '.join(tuned)})" if tuned else rate
