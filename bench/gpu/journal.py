"""A log of trials, written when they end, so that a stopped bench can be resumed.

Each trial is a line of JSON, in a folder named by a digest of everything that a trial's result depends on,
except the way and the rate. An incomplete line is ignored.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Report = dict[str, Any]
"""JSON report of `penstock replay` for a trial."""


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
        """Return the report of a trial; None if it was not run."""
        return self._known.get((way, scenario, rate_rps))

    def add(self, way: str, scenario: str, rate_rps: float, report: Report) -> None:
        """Store a trial."""
        self._known[way, scenario, rate_rps] = report
        row = {"way": way, "scenario": scenario, "rate_rps": rate_rps, "report": report}
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def trials(self, way: str, scenario: str) -> dict[float, Report]:
        """Return the trials of one search, by rate."""
        found = {key[2]: report for key, report in self._known.items() if key[:2] == (way, scenario)}
        return dict(sorted(found.items()))


def digest(conditions: Mapping[str, object]) -> str:
    """Return a digest of the conditions that trials share."""
    text = json.dumps(conditions, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
