"""Which requests of a trace are sent, when, and under which tier."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from penstock_cli.traces import TraceRequest, TraceSummary, read_trace


@dataclass(frozen=True, slots=True)
class Schedule:
    """A trace as it is replayed.

    stretch: its time is multiplied by this.
    duration_s: only arrivals before it, after stretching; None for all.
    tier: of requests that name none.
    renamed: the trace's tier -> the pool's.
    """

    trace: Path
    stretch: float = 1.0
    duration_s: float | None = None
    tier: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)

    def requests(self) -> Iterator[TraceRequest]:
        """The requests in order, read as they are needed. Raises TraceError."""
        planned = (self._planned(request) for request in read_trace(self.trace))
        until_s = self.duration_s
        return planned if until_s is None else takewhile(lambda r: r.arrival_s < until_s, planned)

    def _planned(self, request: TraceRequest) -> TraceRequest:
        return request._replace(
            arrival_s=request.arrival_s * self.stretch,
            tier=self.renamed.get(request.tier, request.tier) or self.tier,
        )


def stretch_to(summary: TraceSummary, rate_rps: float | None) -> float:
    """What to multiply a trace's time by for that mean rate over all; 1 without one."""
    if rate_rps is None or summary.rate_rps is None:
        return 1.0
    return summary.rate_rps / rate_rps
