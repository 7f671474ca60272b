"""Every policy's row of the capacity table, in its page of `docs/policies`.

    python bench/policy_rows.py [--check]

Reads `bench/results/capacity.json` and writes the last section of each page anew. With `--check` it writes
nothing, names the pages that say something else, and fails where there are any.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from penstock_cli.capacity.setting import BUDGETS_TOKENS, SPECULATING, base_policy

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "policies"
TABLE = ROOT / "bench" / "results" / "capacity.json"

HEADING = "## Its row of the capacity table\n"
SCENARIOS = ("chatbot", "coder", "summarizer", "toolllm", "reasoning", "mixed")
SAYING = (
    "Requests a second and replica at which 90 % of all requests keep every target; in brackets what it was\n"
    "tuned to ([capacity](../capacity.md), [all rows](../../bench/results/capacity.md)).\n"
)


class Terms(NamedTuple):
    """What a row's figures have in common."""

    policy: str
    replicas: int
    lengths: str
    truth: str
    seeds: int

    def __str__(self) -> str:
        drafting = ", fixed drafts" if self.policy.endswith(SPECULATING) else ""
        fleet = f", {self.replicas} replicas" if self.replicas > 1 else ""
        samples = f"{self.seeds} sample{'s' if self.seeds > 1 else ''}"
        return f"{self.lengths} lengths, {self.truth} truth{fleet}{drafting}; {samples}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say which pages differ")
    options = parser.parse_args()
    found = orjson.loads(TABLE.read_bytes())
    pages = {path: written(path, found) for path in sorted(PAGES.glob("*.md")) if path.stem != "README"}
    stale = [path for path, text in pages.items() if path.read_text() != text]
    if options.check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what {TABLE.relative_to(ROOT)} says: run {sys.argv[0]}")
        sys.exit(bool(stale))
    for path in stale:
        path.write_text(pages[path])


def written(page: Path, found: Sequence[dict[str, Any]]) -> str:
    """The page with its section as the table has it; without, where the table has nothing of its policy."""
    text = page.read_text().split(HEADING)[0].rstrip() + "\n"
    section = rows([row for row in found if row["policy"].removesuffix(SPECULATING) == page.stem])
    return f"{text}\n{HEADING}\n{SAYING}\n{section}" if section else text


def rows(found: Sequence[dict[str, Any]]) -> str:
    """A Markdown table: a line for each set of terms, a column for each scenario."""
    lines: dict[Terms, dict[str, str]] = {}
    for row in found:
        if row["scenario"] in SCENARIOS:
            terms = Terms(row["policy"], row["replicas"], row["lengths"], row["truth"], row["seeds"])
            lines.setdefault(terms, {})[row["scenario"]] = cell(row)
    if not lines:
        return ""
    heads = ["| |", *(f" {name} |" for name in SCENARIOS), "\n|---|", *("--:|" for _ in SCENARIOS), "\n"]
    body = (
        f"| {terms} | {' | '.join(cells.get(name, '–') for name in SCENARIOS)} |\n"
        for terms, cells in lines.items()
    )
    return "".join([*heads, *body])


def cell(row: dict[str, Any]) -> str:
    """A capacity, and what it was tuned to where there was a choice."""
    rate = f"{row['capacity_rps_per_replica']:.3g}"
    tuned = [
        *([f"{row['batch_tokens']} tokens"] if base_policy(row["policy"]) in BUDGETS_TOKENS else []),
        *([f"{row['drafts']} drafts"] if row["policy"].endswith(SPECULATING) else []),
        *([row["prefill_decode_ratio"]] if "prefill_decode_ratio" in row else []),
    ]
    return f"{rate} ({', '.join(tuned)})" if tuned else rate


if __name__ == "__main__":
    main()
