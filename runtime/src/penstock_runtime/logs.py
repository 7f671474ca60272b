"""Structured logs: one event per line, to standard error. Never prompts, keys or headers."""

import logging
import sys

import structlog


def configure_logs(process: str, level: str = "info", json: bool = False) -> None:
    """Send every log line of this process to standard error, named after it.

    json: one JSON object a line, for collectors; otherwise `key=value` for people.
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=f"{process} %(name)s %(message)s")
