"""Trials that were run, kept as they end, so that a stopped bench continues where it was.

A line of JSON each, in a folder named after everything that a trial's result depends on but the way and the
rate. A line that was cut off by the stop is passed over.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Report = dict[str, Any]
"""What `penstock replay` says of a trial, as JSON."""


class Journal:
    """Trials by way, scenario and rate."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[tuple[str, str, float], Report] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            self._known[row["way"], row["scenario"], row["rate_rps"]] = row["report"]

    def get(self, way: str, scenario: str, rate_rps: float) -> Report | None:
        """What was found, where it was."""
        return self._known.get((way, scenario, rate_rps))

    def add(self, way: str, scenario: str, rate_rps: float, report: Report) -> None:
        """Keep a trial."""
        self._known[way, scenario, rate_rps] = report
        row = {"way": way, "scenario": scenario, "rate_rps": rate_rps, "report": report}
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def trials(self, way: str, scenario: str) -> dict[float, Report]:
        """All of one search, by rate."""
        found = {key[2]: report for key, report in self._known.items() if key[:2] == (way, scenario)}
        return dict(sorted(found.items()))


def digest(conditions: Mapping[str, object]) -> str:
    """A name for what trials have in common."""
    text = json.dumps(conditions, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
