"""Traces: recorded arrivals and lengths, in their published formats."""

from penstock_cli.traces.closed_loops import in_closed_loops
from penstock_cli.traces.read import TraceSummary, read_trace, summarise
from penstock_cli.traces.request import TraceError, TraceRequest

__all__ = ["TraceError", "TraceRequest", "TraceSummary", "in_closed_loops", "read_trace", "summarise"]
