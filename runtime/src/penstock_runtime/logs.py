"""Structured logs: one event per line, to standard error. Never prompts, keys or headers.

A line that cannot be written, because the disk is full or the pipe has no reader, is lost. Logging never
raises, because requests, links and error handlers that log must continue.
"""

import contextlib
import logging
import sys
from typing import TextIO

import structlog


def configure_logs(process: str, level: str = "info", json: bool = False) -> None:
    """Send every log line of this process to standard error, with the process' name.

    json: one JSON object per line, for collectors; otherwise `key=value` for people.
    """
    renderer = structlog.processors.JSONRenderer() if json else structlog.processors.LogfmtRenderer()
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(_Lines(sys.stderr)),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=f"{process} %(name)s %(message)s")


class _Lines:
    """A stream that drops text that cannot be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write text, or drop it."""
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Write buffered text, or drop it."""
        with contextlib.suppress(OSError):
            self._stream.flush()
