"""Why an engine cannot go on, in one line, left where whoever started it looks.

vLLM works in several processes. The one that fails logs why, and behind that come the tracebacks of those
that waited for it: more than a container's last words hold, so Kubernetes would know no more than "see root
cause above". vLLM calls `install` in each of its processes (entry point `vllm.general_plugins`). Where
PENSTOCK_LAST_WORDS names a file, like a container's termination log, what ended the engine is written there.
"""

import logging
import os
from pathlib import Path

VARIABLE = "PENSTOCK_LAST_WORDS"

FATAL = ("vllm.v1.engine.core", "vllm.v1.executor.")
"""Loggers of those that end when they log an exception: the engine's loop and its workers."""

POINTER = "root cause"
"""In what the engine's loop says when it was a worker that failed."""

LONGEST = 1000


class LastWords(logging.Handler):
    """Leaves the exception that a process ends with."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Write it, if it is one. Never raises: the engine has enough to bear."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None or not record.name.startswith(FATAL) or POINTER in str(error):
            return
        try:
            self._path.write_text(f"{type(error).__name__}: {' '.join(str(error).split())}"[:LONGEST])
        except OSError:
            self.handleError(record)


def install() -> None:
    """Leave last words, where the environment says where."""
    if path := os.environ.get(VARIABLE):
        logging.getLogger("vllm").addHandler(LastWords(Path(path)))
