"""The rows that the benchmark prints, and the page that it writes."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple


class Row(NamedTuple):
    """A figure beside its goal. met: None where there is no goal."""

    what: str
    goal: str
    measured: str
    met: bool | None


def row(what: str, goal: str, measured: str, met: bool | None) -> Row:
    """Return the row, which is printed at once: the whole run takes a quarter of an hour."""
    made = Row(what, goal, measured, met)
    print(f"{made.what}: {made.measured}{_verdict(made)}", flush=True)
    return made


def page(rows: Sequence[Row], notes: Sequence[str], command: str) -> str:
    """Return the page of all rows, in Markdown."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    lines = [
        "# Containment",
        "",
        f"What `{command}` measured on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores, load average at",
        f"the end {load}. [Reliability](../../docs/reliability.md) says what bounds what.",
        "",
        "| | goal | measured | |",
        "|---|---|---|---|",
        *(
            f"| {line.what} | {line.goal} | {line.measured} | {_verdict(line).strip(' ()')} |"
            for line in rows
        ),
        "",
        *notes,
    ]
    return "\n".join(lines).rstrip() + "\n"


def _verdict(line: Row) -> str:
    return "" if line.met is None else " (met)" if line.met else " (**missed**)"
