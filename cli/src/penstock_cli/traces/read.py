"""A trace from a file, whatever its format, as requests in order of arrival from 0 on.

Read as a stream, twice: once to learn its size and that every line is good before anything is sent, once
to send. Recorders write a line when a request ends or is flushed, so neighbours may be swapped; a bounded
heap puts them in order, and a trace that is further out of order than that is refused.
"""

import csv
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from penstock_cli.traces import azure_csv, mooncake_jsonl, penstock_csv
from penstock_cli.traces.csv_rows import read_rows
from penstock_cli.traces.lines import read_lines
from penstock_cli.traces.request import TraceError, TraceRequest

REORDERED_REQUESTS = 10_000
"""How far a line may be from its place. At 100 requests a second, a minute and a half."""

FORMATS = (
    f"its header is {','.join(penstock_csv.COLUMNS)},tier or {','.join(azure_csv.COLUMNS)}, "
    "or its lines are JSON objects with timestamp, input_length, output_length"
)


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """What the first reading tells.

    span_s: from the first arrival to the last.
    tiers: as the trace names them, in order of appearance; the empty name where it names none.
    """

    requests: int
    span_s: float
    tiers: tuple[str, ...]

    @property
    def rate_rps(self) -> float | None:
        """Mean rate over all; None where a single moment holds everything."""
        return self.requests / self.span_s if self.span_s > 0 else None


def summarise(path: Path) -> TraceSummary:
    """Read the trace once. Raises TraceError at its first bad line, or where it is empty."""
    requests, last_s = 0, 0.0
    tiers: dict[str, None] = {}
    for request in read_trace(path):
        requests, last_s = requests + 1, request.arrival_s
        tiers.setdefault(request.tier)
    if requests == 0:
        raise TraceError(f"{path}: line 1, column 1: no request in this trace")
    return TraceSummary(requests, last_s, tuple(tiers))


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """The trace's requests in order of arrival, the first at 0. Raises TraceError."""
    first_s: float | None = None
    for request in _in_order(path, _parse(path)):
        first_s = request.arrival_s if first_s is None else first_s
        yield request._replace(arrival_s=request.arrival_s - first_s)


def _parse(path: Path) -> Iterator[tuple[int, TraceRequest]]:
    lines = read_lines(path)
    head = next(lines, "")
    if head.lstrip().startswith("{"):
        return mooncake_jsonl.parse(path, chain([head], lines))
    header = [name.strip() for name in next(csv.reader([head]), [])]
    if set(penstock_csv.COLUMNS) <= set(header):
        return penstock_csv.parse(read_rows(path, lines, header))
    if set(azure_csv.COLUMNS) <= set(header):
        return azure_csv.parse(read_rows(path, lines, header))
    raise TraceError(f"{path}: line 1, column 1: no trace this reads; {FORMATS}")


def _in_order(path: Path, requests: Iterable[tuple[int, TraceRequest]]) -> Iterator[TraceRequest]:
    """Sorted by arrival, ties as in the file, holding a bounded number."""
    heap: list[tuple[float, int, TraceRequest]] = []
    given_s = 0.0
    for line, request in requests:
        if request.arrival_s < given_s:
            early_s = given_s - request.arrival_s
            raise TraceError(
                f"{path}: line {line}, column 1: arrives {early_s:.3f} s before one that stands more than "
                f"{REORDERED_REQUESTS} requests earlier; sort the trace by arrival"
            )
        heapq.heappush(heap, (request.arrival_s, line, request))
        if len(heap) > REORDERED_REQUESTS:
            given_s, _, first = heapq.heappop(heap)
            yield first
    yield from (heapq.heappop(heap)[2] for _ in range(len(heap)))
