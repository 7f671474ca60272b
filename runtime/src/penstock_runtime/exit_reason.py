"""Finds the line of a process' log with the reason of its end.

It is often not the last line. vLLM's server ends with the traceback of the process that waited for the failed
one, which refers to the lines above; an error in its settings ends with a link to documentation. So this
module returns the last error line that does not refer to another one.
"""

import re
from collections.abc import Iterable

LINES = 400
"""Number of last lines to keep of a log: tracebacks of three processes in sequence."""

LONGEST = 400
"""Most characters of a line that are returned."""

_WRITER = re.compile(r"^\([A-Z]\w*(?: \w+=\d+)*\) ")
_LOGGED = re.compile(r"^[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[[^\]]+\] ")
_ERROR = re.compile(r"^(?:(?:\w+\.)+[A-Z]\w*|\w*(?:Error|Exception)): |^[\w./-]+: error: ")
_SEVERAL = re.compile(r"\d+ validation errors? for [\w.]+$")
_POINTERS = (
    "See root cause",
    "See stack trace for root cause",
    "KeyboardInterrupt",
)


def reason_line(log: Iterable[str]) -> str:
    """Return the line that names the error, truncated; "" if the log is empty."""
    lines = [line for line in map(_bare, log) if line.strip()]
    errors = [at for at, line in enumerate(lines) if _ERROR.match(line)]
    telling = [at for at in errors if not any(words in lines[at] for words in _POINTERS)]
    if found := telling or errors:
        return _whole(lines, found[-1])[:LONGEST]
    return lines[-1].strip()[:LONGEST] if lines else ""


def _bare(line: str) -> str:
    """Return a line without vLLM's prefix of process and log header."""
    return _LOGGED.sub("", _WRITER.sub("", line.rstrip()))


def _whole(lines: list[str], at: int) -> str:
    """Return an error. If its first line only counts errors, the first of them is appended."""
    counted = _SEVERAL.search(lines[at]) and at + 1 < len(lines)
    return f"{lines[at]}: {lines[at + 1].strip()}" if counted else lines[at]
