"""The rows that the bench prints, and the page that it writes."""

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple


class GoalRow(NamedTuple):
    """A figure with its goal. met: None if there is no goal."""

    what: str
    goal: str
    measured: str
    met: bool | None


def row(what: str, goal: str, measured: str, met: bool | None) -> GoalRow:
    """Print the row immediately, because the whole run takes a quarter of an hour, and return it."""
    made = GoalRow(what, goal, measured, met)
    print(f"{made.what}: {made.measured}{_verdict(made)}", flush=True)
    return made


def keep(file: Path, part: str, rows: Sequence[GoalRow]) -> dict[str, Any]:
    """Replace a part's rows in the file, and return all parts."""
    parts: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    parts[part] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "load": load, "rows": rows}
    file.write_text(json.dumps(parts, indent=1) + "\n")
    return parts


def page(parts: Mapping[str, Any], heads: Mapping[str, tuple[str, str]]) -> str:
    """Return the page as Markdown. heads: title and conditions of each part, in the page's order."""
    lines = [
        "# Containment",
        "",
        f"What `make bench-containment` measured on {os.cpu_count()} cores.",
        "[Reliability](../../docs/reliability.md) says what bounds what.",
    ]
    for part, (title, conditions) in heads.items():
        if part in parts:
            found = parts[part]
            rows = [GoalRow(*row) for row in found["rows"]]
            lines += ["", f"## {title}", "", conditions]
            lines += [f"{found['date']}, load average at the end {found['load']}.", ""]
            lines += ["| | goal | measured | |", "|---|---|---|---|"]
            lines += [f"| {r.what} | {r.goal} | {r.measured} | {_verdict(r).strip(' ()')} |" for r in rows]
    missing = [title for part, (title, _) in heads.items() if part not in parts]
    if missing:
        lines += ["", f"Not measured yet on a machine that was quiet enough: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def _verdict(line: GoalRow) -> str:
    return "" if line.met is None else " (met)" if line.met else " (**missed**)"
