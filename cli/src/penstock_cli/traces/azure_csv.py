"""Azure's LLM inference traces: CSV with `TIMESTAMP,ContextTokens,GeneratedTokens` [Splitwise, ISCA'24]."""

from collections.abc import Iterator
from datetime import UTC, datetime

from penstock_cli.traces.csv_rows import CsvRow
from penstock_cli.traces.request import TraceRequest

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def parse(rows: Iterator[CsvRow]) -> Iterator[tuple[int, TraceRequest]]:
    """Yield each line's number and request; `arrival_s` is Unix time, as in the file."""
    for row in rows:
        prompt_tokens, output_tokens = row.tokens("ContextTokens"), row.tokens("GeneratedTokens")
        yield row.line, TraceRequest(_seconds(row), prompt_tokens, output_tokens)


def _seconds(row: CsvRow) -> float:
    try:
        moment = datetime.fromisoformat(row.text("TIMESTAMP"))
    except ValueError:
        row.fail("TIMESTAMP", "is not a time like 2023-11-16 18:17:03.9799600")
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return zoned.timestamp()
