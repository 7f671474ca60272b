"""Our own traces: CSV with `arrival_s,prompt_tokens,output_tokens,tier`; other columns are passed over."""

from collections.abc import Iterator

from penstock_cli.traces.csv_rows import Row
from penstock_cli.traces.request import TraceRequest

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")


def parse(rows: Iterator[Row]) -> Iterator[tuple[int, TraceRequest]]:
    """Each line's number and request, in the file's order."""
    for row in rows:
        request = TraceRequest(
            row.seconds("arrival_s"),
            row.tokens("prompt_tokens"),
            row.tokens("output_tokens"),
            row.text("tier"),
        )
        yield row.line, request
