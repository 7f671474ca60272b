"""Values of command-line flags, as argparse takes them: a wrong one is a line on stderr and exit code 2."""

import argparse


def port(text: str) -> int:
    """A TCP port; 0 takes any free one."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is no port: 0 to 65535")
    return int(text)
