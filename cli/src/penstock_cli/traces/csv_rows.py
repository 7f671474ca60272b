"""Rows of a CSV trace: cells by column name, and errors with line and column."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import NoReturn

from penstock_cli.traces.request import TraceError

MOST_TOKENS = 10_000_000
"""More tokens in one request are an error, such as a wrong column."""


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One line's cells by the header's names."""

    path: Path
    line: int
    header: Sequence[str]
    cells: Sequence[str]

    def text(self, name: str) -> str:
        """Return the stripped cell of a column; empty if there is no such column."""
        return self.cells[self.header.index(name)].strip() if name in self.header else ""

    def tokens(self, name: str) -> int:
        """Return a count of tokens, at least one."""
        return self._whole(name, 1)

    def count(self, name: str) -> int:
        """Return a count from 0; 0 if the cell is empty or there is no such column."""
        return self._whole(name, 0) if self.text(name) else 0

    def _whole(self, name: str, least: int) -> int:
        text = self.text(name)
        if not (text.isascii() and text.isdigit()):
            self.fail(name, "is not a whole number")
        number = int(text)
        if not least <= number <= MOST_TOKENS:
            self.fail(name, f"is not from {least} to {MOST_TOKENS}")
        return number

    def seconds(self, name: str) -> float:
        """Return a time or duration in seconds, not negative."""
        try:
            seconds = float(self.text(name))
        except ValueError:
            self.fail(name, "is not a number of seconds")
        if not isfinite(seconds) or seconds < 0:
            self.fail(name, "is negative or not finite")
        return seconds

    def fail(self, name: str, what: str) -> NoReturn:
        """Raise TraceError for one cell."""
        column = self.header.index(name) + 1
        raise TraceError(
            f'{self.path}: line {self.line}, column {column} ({name}): "{self.text(name)}" {what}'
        )


def read_rows(path: Path, lines: Iterator[str], header: Sequence[str], header_line: int) -> Iterator[CsvRow]:
    """Yield the rows after the header line, without empty lines."""
    reader = csv.reader(lines)
    for cells in reader:
        line = reader.line_num + header_line
        if not cells:
            continue
        if len(cells) != len(header):
            column = min(len(cells), len(header)) + 1
            raise TraceError(
                f"{path}: line {line}, column {column}: {len(cells)} cells, but the header has {len(header)}"
            )
        yield CsvRow(path, line, header, cells)
