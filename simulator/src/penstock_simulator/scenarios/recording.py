"""The recorded traces that scenarios are made of. What each is, and whose: `recordings/README.md`."""

import gzip
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Row(NamedTuple):
    """One recorded request. What a recording does not tell is 0."""

    arrival_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    thinking_tokens: int = 0


@cache
def recording(name: str) -> tuple[Row, ...]:
    """The recording of this name, in its order."""
    text = gzip.decompress((files(__package__) / "recordings" / f"{name}.csv.gz").read_bytes()).decode()
    header, *lines = text.split()
    columns = header.split(",")
    return tuple(_row(dict(zip(columns, line.split(","), strict=True))) for line in lines)


def _row(cells: dict[str, str]) -> Row:
    return Row(float(cells.pop("arrival_s", "0")), **{name: int(cell) for name, cell in cells.items()})


GOLDEN = 0.6180339887498949
"""Multiples of it, modulo 1, never come close to one another: starts of samples that differ."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a recording that is one sample of arrivals.

    The first sample is the stretch itself. Others begin elsewhere within `period_s` and wrap around, so that
    bursts are met at other moments, and where the period is longer than the stretch, other requests too.
    """

    recording: str
    start_s: float
    seconds: float
    period_s: float
    phase: float = 0.0

    def rows(self, sample: int) -> list[Row]:
        """The sample's requests, with times from 0 to `seconds`."""
        shift_s = self.start_s + self.period_s * ((sample * GOLDEN + self.phase) % 1.0)
        placed = (
            (self._since(row.arrival_s, shift_s), row)
            for row in recording(self.recording)
            if self.start_s <= row.arrival_s < self.start_s + self.period_s
        )
        return sorted(row._replace(arrival_s=at_s) for at_s, row in placed if at_s < self.seconds)

    def _since(self, at_s: float, shift_s: float) -> float:
        return at_s - shift_s if at_s >= shift_s else at_s - shift_s + self.period_s
