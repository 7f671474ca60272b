"""Waiting for what a cluster does in its own time."""

import time
from collections.abc import Callable

LONGEST_S = 60.0
AGAIN_S = 0.05


def until(holds: Callable[[], bool]) -> None:
    """Returns as soon as it holds; fails where that takes a minute."""
    deadline_s = time.monotonic() + LONGEST_S
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {LONGEST_S:.0f} s"
        time.sleep(AGAIN_S)
