"""The requests to send: a trace with its time scaled and its tiers renamed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from penstock_cli.traces import TraceRequest, TraceSummary, read_trace


@dataclass(frozen=True, slots=True)
class Schedule:
    """A trace as it is replayed.

    stretch: factor on its time.
    duration_s: only arrivals before this time, after scaling; None for all.
    tier: tier of requests that name none.
    renamed: the trace's tier names to the pool's.
    """

    trace: Path
    stretch: float = 1.0
    duration_s: float | None = None
    tier: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)

    def requests(self) -> Iterator[TraceRequest]:
        """Yield the requests in order, read lazily. Raises TraceError."""
        planned = (self._planned(request) for request in read_trace(self.trace))
        until_s = self.duration_s
        return planned if until_s is None else takewhile(lambda r: r.arrival_s < until_s, planned)

    def _planned(self, request: TraceRequest) -> TraceRequest:
        return request._replace(
            arrival_s=request.arrival_s * self.stretch,
            tier=self.renamed.get(request.tier, request.tier) or self.tier,
        )


def stretch_to(summary: TraceSummary, rate_rps: float | None) -> float:
    """Return the factor on a trace's time for a mean rate; 1 without a rate."""
    if rate_rps is None or summary.rate_rps is None:
        return 1.0
    return summary.rate_rps / rate_rps
