"""The capacity table as a file: the latest result of each question that was searched.

Searches add their rows to `bench/results/capacity.json` when they end, and the page is written from it. A row
has the digest of the code that found it (`code`), because a table is filled over several commits.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from penstock_cli.capacity.question import Question
from penstock_cli.capacity.report import answer_of, as_json
from penstock_cli.capacity.search import CapacityResult
from penstock_cli.capacity.trial_log import code_digest

DIGEST_DIGITS = 12


class CapacityRows:
    """The rows of a file, by question. The file is rewritten with every answer."""

    def __init__(self, path: Path) -> None:
        self._path, self._code = path, code_digest()[:DIGEST_DIGITS]
        rows = orjson.loads(path.read_bytes()) if path.exists() else []
        self._rows: dict[Question, Mapping[str, Any]] = {answer_of(row).question: row for row in rows}

    def answer(self, question: Question) -> CapacityResult | None:
        """Return the result of a question; None if it was not searched yet."""
        row = self._rows.get(question)
        return None if row is None else answer_of(row)

    def current(self, question: Question) -> bool:
        """Return whether the question's row was found by the current code."""
        return self._rows.get(question, {}).get("code") == self._code

    def add(self, answer: CapacityResult) -> None:
        """Replace the row of the answer's question, and write the file."""
        (row,) = as_json([answer])
        self._rows[answer.question] = {**row, "code": self._code}
        unfinished = self._path.with_suffix(".unfinished")
        unfinished.write_bytes(orjson.dumps(list(self._rows.values()), option=orjson.OPT_INDENT_2) + b"\n")
        unfinished.replace(self._path)
