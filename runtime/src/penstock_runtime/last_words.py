"""Which line of a log's end says why its process ended.

The last line often does not. vLLM's server ends with the traceback of whoever waited for the process that
failed, behind that process's own, and both say to look above; an error in its settings ends with the address
of a manual. So the end is read backwards for the last line that is an error and does not point elsewhere.
"""

import re
from collections.abc import Iterable

LINES = 400
"""How much of a log's end has to be kept: tracebacks of three processes, one behind the other."""

LONGEST = 400
"""What of one line is shown."""

_WRITER = re.compile(r"^\([A-Z]\w*(?: \w+=\d+)*\) ")
_LOGGED = re.compile(r"^[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[[^\]]+\] ")
_ERROR = re.compile(r"^(?:(?:\w+\.)+[A-Z]\w*|\w*(?:Error|Exception)): |^[\w./-]+: error: ")
_SEVERAL = re.compile(r"\d+ validation errors? for [\w.]+$")
_POINTERS = (
    "See root cause",
    "See stack trace for root cause",
    "KeyboardInterrupt",
)


def telling_line(log: Iterable[str]) -> str:
    """The line that tells most, shortened; empty where nothing was said."""
    said = [line for line in map(_bare, log) if line.strip()]
    errors = [at for at, line in enumerate(said) if _ERROR.match(line)]
    telling = [at for at in errors if not any(words in said[at] for words in _POINTERS)]
    if found := telling or errors:
        return _whole(said, found[-1])[:LONGEST]
    return said[-1].strip()[:LONGEST] if said else ""


def _bare(line: str) -> str:
    """Without what vLLM puts before it: who writes, and a log's head."""
    return _LOGGED.sub("", _WRITER.sub("", line.rstrip()))


def _whole(lines: list[str], at: int) -> str:
    """An error whose first line only counts what follows, with the first of what follows."""
    counted = _SEVERAL.search(lines[at]) and at + 1 < len(lines)
    return f"{lines[at]}: {lines[at + 1].strip()}" if counted else lines[at]
