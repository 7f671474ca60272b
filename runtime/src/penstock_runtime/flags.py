"""Command-line flags for argparse, which reports an invalid value on stderr with exit code 2."""

import argparse
from pathlib import Path


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the flags that the processes of a pool share: the pool file and the format of logs."""
    add = parser.add_argument
    add("-f", "--file", type=Path, required=True, metavar="POOL", help="the pool file")
    add(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="lowest level that is logged (default: %(default)s)",
    )
    add("--log-json", action="store_true", help="log one JSON object a line")


def port(text: str) -> int:
    """Parse a TCP port; 0 means any free one."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port: 0 to 65535")
    return int(text)


def seconds(text: str) -> float:
    """Parse a duration in seconds, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds, 0 or more")
    return value
