"""Penstock's traces: CSV with `arrival_s,prompt_tokens,output_tokens,tier`.

Optional columns are `session`, `stage`, `think_s` and `thinking_tokens`. Other columns are ignored.
"""

from collections.abc import Iterator

from penstock_cli.traces.csv_rows import CsvRow
from penstock_cli.traces.request import BY_ARRIVAL, MOST_SPAN_S, TraceRequest

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")


def parse(rows: Iterator[CsvRow]) -> Iterator[tuple[int, TraceRequest]]:
    """Yield each line's number and request, in the file's order."""
    for row in rows:
        yield row.line, _request(row)


def _request(row: CsvRow) -> TraceRequest:
    output_tokens, thinking_tokens = row.tokens("output_tokens"), row.count("thinking_tokens")
    if thinking_tokens > output_tokens:
        row.fail("thinking_tokens", f"is more than all {output_tokens} output tokens")
    session = row.text("session")
    return TraceRequest(
        row.seconds("arrival_s"),
        row.tokens("prompt_tokens"),
        output_tokens,
        row.text("tier"),
        session=session,
        stage=row.count("stage") if "stage" in row.header or not session else BY_ARRIVAL,
        thinking_tokens=thinking_tokens,
        think_s=_think_s(row) if row.text("think_s") else None,
    )


def _think_s(row: CsvRow) -> float:
    seconds = row.seconds("think_s")
    if seconds > MOST_SPAN_S:
        row.fail("think_s", "is longer than a year")
    return seconds
