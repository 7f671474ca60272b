"""Traces: recorded arrivals and lengths, in their published formats."""

from penstock_cli.traces.read import TraceSummary, read_trace, summarise
from penstock_cli.traces.request import TraceError, TraceRequest

__all__ = ["TraceError", "TraceRequest", "TraceSummary", "read_trace", "summarise"]
