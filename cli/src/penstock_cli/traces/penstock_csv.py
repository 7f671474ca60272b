"""Our own traces: CSV with `arrival_s,prompt_tokens,output_tokens,tier`, and where there are such things
`session,stage,thinking_tokens`. Other columns are passed over.
"""

from collections.abc import Iterator

from penstock_cli.traces.csv_rows import Row
from penstock_cli.traces.request import TraceRequest

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")


def parse(rows: Iterator[Row]) -> Iterator[tuple[int, TraceRequest]]:
    """Each line's number and request, in the file's order."""
    for row in rows:
        yield row.line, _request(row)


def _request(row: Row) -> TraceRequest:
    output_tokens, thinking_tokens = row.tokens("output_tokens"), row.count("thinking_tokens")
    if thinking_tokens > output_tokens:
        row.fail("thinking_tokens", f"is more than all {output_tokens} output tokens")
    return TraceRequest(
        row.seconds("arrival_s"),
        row.tokens("prompt_tokens"),
        output_tokens,
        row.text("tier"),
        session=row.text("session"),
        stage=row.count("stage"),
        thinking_tokens=thinking_tokens,
    )
