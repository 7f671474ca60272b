"""Types of command-line flags for argparse, which reports an invalid value on stderr with exit code 2."""

import argparse


def port(text: str) -> int:
    """Parse a TCP port; 0 means any free one."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is no port: 0 to 65535")
    return int(text)


def seconds(text: str) -> float:
    """Parse a duration in seconds, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds, 0 or more")
    return value
