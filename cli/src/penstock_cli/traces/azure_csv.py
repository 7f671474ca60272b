"""Azure's LLM inference traces: CSV with `TIMESTAMP,ContextTokens,GeneratedTokens` [Splitwise, ISCA'24]."""

from collections.abc import Iterator
from datetime import UTC, datetime

from penstock_cli.traces.csv_rows import Row
from penstock_cli.traces.request import TraceRequest

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def parse(rows: Iterator[Row]) -> Iterator[tuple[int, TraceRequest]]:
    """Each line's number and request; `arrival_s` counts from 1970, as the timestamps do."""
    for row in rows:
        prompt_tokens, output_tokens = row.tokens("ContextTokens"), row.tokens("GeneratedTokens")
        yield row.line, TraceRequest(_seconds(row), prompt_tokens, output_tokens)


def _seconds(row: Row) -> float:
    try:
        moment = datetime.fromisoformat(row.text("TIMESTAMP"))
    except ValueError:
        row.fail("TIMESTAMP", "is no time like 2023-11-16 18:17:03.9799600")
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return zoned.timestamp()
