"""Mooncake's traces: a JSON object a line with `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.

A hash id identifies a block of prompt together with everything before it, so equal ids share a prefix. The
blocks have 512 tokens in Mooncake's own traces and 16 in others of this format. The file does not state it.

A length of 0, which some traces record for requests that failed, is read as 1: a request computes at least
one token of its prompt, and generates one.

Traces of sessions name each one in `session_id`. A session's later lines may have `delay`: milliseconds from
the answer to the line before until the request is sent, as AIPerf writes it. Such a line may have no
`timestamp`; its time is then that of the session's line before.
"""

from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any, NoReturn

import orjson

from penstock_cli.traces.csv_rows import MOST_TOKENS
from penstock_cli.traces.request import BY_ARRIVAL, MOST_SPAN_S, TraceError, TraceRequest


def parse(path: Path, lines: Iterator[str], first: int) -> Iterator[tuple[int, TraceRequest]]:
    """Yield each line's number and request, in the file's order. first: the number of the first line."""
    last: dict[str, TraceRequest] = {}
    for number, text in enumerate(lines, start=first):
        if not text.strip():
            continue
        line = _Line(path, number, text)
        request = _request(line, last.get(_session(line)))
        if request.session:
            last[request.session] = request._replace(prefix_blocks=())
        yield number, request


class _Line:
    """One JSON object with its line number."""

    def __init__(self, path: Path, number: int, text: str) -> None:
        self.path, self.number, self.text = path, number, text
        try:
            self.fields: Any = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            self.fail(error.colno, f"not JSON: {error.msg}")
        if not isinstance(self.fields, dict):
            self.fail(1, "is not a JSON object")

    def value(self, name: str) -> Any:
        if name not in self.fields:
            self.fail(1, f"has no {name}")
        return self.fields[name]

    def wrong(self, name: str, what: str) -> NoReturn:
        value = orjson.dumps(self.fields[name]).decode()
        self.fail(self.text.find(f'"{name}"') + 1, f"{name} {value[:40]} {what}")

    def fail(self, column: int, what: str) -> NoReturn:
        raise TraceError(f"{self.path}: line {self.number}, column {column}: {what}")


def _request(line: _Line, before: TraceRequest | None) -> TraceRequest:
    """Return a line's request. before: the last one of its session."""
    delayed = before is not None and line.fields.get("delay") is not None
    session = _session(line)
    at_s = before.arrival_s if before is not None and delayed and "timestamp" not in line.fields else None
    return TraceRequest(
        arrival_s=_milliseconds(line, "timestamp") / 1000 if at_s is None else at_s,
        prompt_tokens=_tokens(line, "input_length"),
        output_tokens=_tokens(line, "output_length"),
        prefix_blocks=_hash_ids(line) if "hash_ids" in line.fields else (),
        session=session,
        stage=BY_ARRIVAL if session else 0,
        think_s=_milliseconds(line, "delay") / 1000 if delayed else None,
        timed=at_s is None,
    )


def _session(line: _Line) -> str:
    value = line.fields.get("session_id")
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        line.wrong("session_id", "is not a name or a number")
    return str(value)


def _milliseconds(line: _Line, name: str) -> float:
    value = line.value(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        line.wrong(name, "is not a number of milliseconds")
    if name == "delay" and value > MOST_SPAN_S * 1000:
        line.wrong(name, "is longer than a year")
    return float(value)


def _tokens(line: _Line, name: str) -> int:
    value = line.value(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        line.wrong(name, f"is not a whole number from 0 to {MOST_TOKENS}")
    return max(value, 1)


def _hash_ids(line: _Line) -> tuple[int, ...]:
    value = line.fields["hash_ids"]
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        line.wrong("hash_ids", "is not a list of whole numbers")
    return tuple(value)
