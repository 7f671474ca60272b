"""The recorded traces that scenarios are made of. `recordings/README.md` describes each and its licence."""

import gzip
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class RecordedRequest(NamedTuple):
    """One recorded request. Values that a recording lacks are 0."""

    arrival_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    thinking_tokens: int = 0


@cache
def recording(name: str) -> tuple[RecordedRequest, ...]:
    """Return the recording of this name, in its order."""
    text = gzip.decompress((files(__package__) / "recordings" / f"{name}.csv.gz").read_bytes()).decode()
    header, *lines = text.split()
    columns = header.split(",")
    return tuple(_row(dict(zip(columns, line.split(","), strict=True))) for line in lines)


def _row(cells: dict[str, str]) -> RecordedRequest:
    return RecordedRequest(
        float(cells.pop("arrival_s", "0")), **{name: int(cell) for name, cell in cells.items()}
    )


GOLDEN = 0.6180339887498949
"""Its multiples modulo 1 are evenly spread, so the samples' start times differ."""


@dataclass(frozen=True, slots=True)
class RecordingWindow:
    """A window of a recording, which is one sample of arrivals.

    Sample 0 is the window itself. Others start elsewhere within `period_s` and wrap around, so bursts come at
    other times, and if the period is longer than the window, with other requests.
    """

    recording: str
    start_s: float
    seconds: float
    period_s: float
    phase: float = 0.0

    def rows(self, sample: int) -> list[RecordedRequest]:
        """Return the sample's requests, with times from 0 to `seconds`."""
        shift_s = self.start_s + self.period_s * ((sample * GOLDEN + self.phase) % 1.0)
        placed = (
            (self._since(row.arrival_s, shift_s), row)
            for row in recording(self.recording)
            if self.start_s <= row.arrival_s < self.start_s + self.period_s
        )
        return sorted(row._replace(arrival_s=at_s) for at_s, row in placed if at_s < self.seconds)

    def _since(self, at_s: float, shift_s: float) -> float:
        return at_s - shift_s if at_s >= shift_s else at_s - shift_s + self.period_s
