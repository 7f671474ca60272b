"""Reads a trace in any supported format, as requests in order of arrival, the first at 0.

A trace is streamed twice: once to validate every line and count requests, once to send. Recorders write a
line when a request ends, so lines may be out of order by a few; a bounded heap sorts them, and a trace that
is further out of order is rejected.
"""

import csv
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from penstock_cli.traces import azure_csv, mooncake_jsonl, penstock_csv
from penstock_cli.traces.csv_rows import read_rows
from penstock_cli.traces.lines import read_lines
from penstock_cli.traces.request import BY_ARRIVAL, MOST_SPAN_S, TraceError, TraceRequest

REORDERED_REQUESTS = 10_000
"""How far a line may be out of order: 100 s at 100 requests/s."""

FORMATS = (
    f"its header is {','.join(penstock_csv.COLUMNS)},tier or {','.join(azure_csv.COLUMNS)}, "
    "or its lines are JSON objects with timestamp, input_length, output_length"
)


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Summary of a trace.

    span_s: seconds from the first arrival to the last.
    tiers: tier names of the trace, in order of appearance; "" for requests without one.
    has_sessions: whether any request has a session. has_think_times: whether any has a think time.
    untimed: the first request without a recorded time; None if all have one.
    """

    requests: int
    span_s: float
    tiers: tuple[str, ...]
    has_sessions: bool = False
    has_think_times: bool = False
    untimed: int | None = None

    @property
    def rate_rps(self) -> float | None:
        """Mean rate; None if all requests arrive at once."""
        return self.requests / self.span_s if self.span_s > 0 else None


def summarise(path: Path) -> TraceSummary:
    """Read the trace once. Raises TraceError at its first invalid line, or if it is empty."""
    tiers: dict[str, None] = {}
    requests, last = 0, None
    has_sessions, has_think_times, untimed = False, False, None
    for last in read_trace(path):  # `last` is used after the loop
        requests += 1
        tiers.setdefault(last.tier)
        has_sessions |= bool(last.session)
        has_think_times |= last.think_s is not None
        untimed = last.number if untimed is None and not last.timed else untimed
    if last is None:
        raise TraceError(f"{path}: line 1, column 1: no request in this trace")
    return TraceSummary(requests, last.arrival_s, tuple(tiers), has_sessions, has_think_times, untimed)


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """Yield the trace's requests in order of arrival, the first at 0. Raises TraceError."""
    with closing(read_lines(path)) as lines:
        yield from _numbered(path, _in_order(path, _parse(path, lines)))


def _numbered(path: Path, ordered: Iterable[tuple[int, TraceRequest]]) -> Iterator[TraceRequest]:
    """Yield requests with their place in the trace, and times since the first one."""
    first_s: float | None = None
    stages = _Stages()
    for number, (line, request) in enumerate(ordered):
        first_s = request.arrival_s if first_s is None else first_s
        since_s = request.arrival_s - first_s
        if since_s > MOST_SPAN_S:
            raise TraceError(f"{path}: line {line}, column 1: more than a year after the first request")
        yield request._replace(arrival_s=since_s, number=number, stage=stages.of(request))


class _Stages:
    """Stages of sessions by arrival, for traces that do not have them."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()

    def of(self, request: TraceRequest) -> int:
        """Return the stage of the next request."""
        if request.stage != BY_ARRIVAL:
            return request.stage
        self._requests[request.session] += 1
        return self._requests[request.session] - 1


def _parse(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, TraceRequest]]:
    number, head = next(((at, line) for at, line in enumerate(lines, start=1) if line.strip()), (1, ""))
    if head.lstrip().startswith("{"):
        return mooncake_jsonl.parse(path, chain([head], lines), number)
    header = [name.strip() for name in next(csv.reader([head]), [])]
    if set(penstock_csv.COLUMNS) <= set(header):
        return penstock_csv.parse(read_rows(path, lines, header, number))
    if set(azure_csv.COLUMNS) <= set(header):
        return azure_csv.parse(read_rows(path, lines, header, number))
    if not head:
        return iter(())
    raise TraceError(f"{path}: line {number}, column 1: unknown format; {FORMATS}")


def _in_order(path: Path, requests: Iterable[tuple[int, TraceRequest]]) -> Iterator[tuple[int, TraceRequest]]:
    """Yield lines and requests sorted by arrival, ties in the file's order, with a bounded buffer."""
    heap: list[tuple[float, int, TraceRequest]] = []
    yielded_s = 0.0
    for line, request in requests:
        if request.arrival_s < yielded_s:
            early_s = yielded_s - request.arrival_s
            raise TraceError(
                f"{path}: line {line}, column 1: arrives {early_s:.3f} s before a request that is more "
                f"than {REORDERED_REQUESTS} lines earlier; sort the trace by arrival"
            )
        heapq.heappush(heap, (request.arrival_s, line, request))
        if len(heap) > REORDERED_REQUESTS:
            yielded_s, earlier_line, first = heapq.heappop(heap)
            yield earlier_line, first
    yield from (heapq.heappop(heap)[1:] for _ in range(len(heap)))
