"""Rows of a trace in CSV: cells by column name, and errors that say where a bad one stands."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import NoReturn

from penstock_cli.traces.request import TraceError

MOST_TOKENS = 10_000_000
"""More in one request is a slip: a wrong column, or a missing separator."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line's cells, under the header's names."""

    path: Path
    line: int
    header: Sequence[str]
    cells: Sequence[str]

    def text(self, name: str) -> str:
        """The cell under that name, stripped; empty where there is no such column."""
        return self.cells[self.header.index(name)].strip() if name in self.header else ""

    def tokens(self, name: str) -> int:
        """A count of tokens, at least one."""
        return self._whole(name, 1)

    def count(self, name: str) -> int:
        """A count that may be nothing; 0 where the cell is empty or there is no such column."""
        return self._whole(name, 0) if self.text(name) else 0

    def _whole(self, name: str, least: int) -> int:
        text = self.text(name)
        if not (text.isascii() and text.isdigit()):
            self.fail(name, "is no whole number")
        number = int(text)
        if not least <= number <= MOST_TOKENS:
            self.fail(name, f"is not from {least} to {MOST_TOKENS}")
        return number

    def seconds(self, name: str) -> float:
        """A moment or duration in seconds, not negative."""
        try:
            seconds = float(self.text(name))
        except ValueError:
            self.fail(name, "is no number of seconds")
        if not isfinite(seconds) or seconds < 0:
            self.fail(name, "is not from 0 up")
        return seconds

    def fail(self, name: str, what: str) -> NoReturn:
        """Blame one cell."""
        column = self.header.index(name) + 1
        raise TraceError(
            f'{self.path}: line {self.line}, column {column} ({name}): "{self.text(name)}" {what}'
        )


def read_rows(path: Path, lines: Iterator[str], header: Sequence[str]) -> Iterator[Row]:
    """Rows after the header line. Empty lines are none."""
    reader = csv.reader(lines)
    for cells in reader:
        line = reader.line_num + 1
        if not cells:
            continue
        if len(cells) != len(header):
            column = min(len(cells), len(header)) + 1
            raise TraceError(
                f"{path}: line {line}, column {column}: has {len(cells)} columns, the header {len(header)}"
            )
        yield Row(path, line, header, cells)
