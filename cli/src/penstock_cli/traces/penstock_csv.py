"""Penstock's traces: CSV with `arrival_s,prompt_tokens,output_tokens,tier`.

Optional columns are `session`, `stage`, `think_s` and `thinking_tokens`. Other columns are ignored.
"""

from collections.abc import Iterator

from penstock_cli.traces.csv_rows import CsvRow
from penstock_cli.traces.request import TraceRequest

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")


def parse(rows: Iterator[CsvRow]) -> Iterator[tuple[int, TraceRequest]]:
    """Yield each line's number and request, in the file's order."""
    for row in rows:
        yield row.line, _request(row)


def _request(row: CsvRow) -> TraceRequest:
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
        think_s=row.seconds("think_s") if row.text("think_s") else None,
    )
