"""Writes the reason why an engine ends, in one line, to a file that its supervisor reads.

vLLM consists of several processes. The one that fails logs the reason, followed by the tracebacks of those
that waited for it. These exceed a container's termination message, so Kubernetes would only show "see root
cause above". vLLM calls `install` in each of its processes (entry point `vllm.general_plugins`). If
PENSTOCK_TERMINATION_LOG names a file, such as a container's termination log, the exception that ended the
engine is written there.
"""

import logging
import os
from pathlib import Path

VARIABLE = "PENSTOCK_TERMINATION_LOG"

FATAL = ("vllm.v1.engine.core", "vllm.v1.executor.")
"""Loggers of processes that end when they log an exception: the engine's loop and its workers."""

POINTER = "root cause"
"""Text in the message of the engine's loop when a worker has failed."""

LONGEST = 1000


class TerminationMessage(logging.Handler):
    """Logging handler that writes the exception that ends a process."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record's exception, if it has one. Never raises, so that it causes no further failure."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None or not record.name.startswith(FATAL) or POINTER in str(error):
            return
        try:
            self._path.write_text(f"{type(error).__name__}: {' '.join(str(error).split())}"[:LONGEST])
        except OSError:
            self.handleError(record)


def install() -> None:
    """Install the handler if the environment names a file."""
    if path := os.environ.get(VARIABLE):
        logging.getLogger("vllm").addHandler(TerminationMessage(Path(path)))
