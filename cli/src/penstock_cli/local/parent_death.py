"""Ends child processes when their parent is killed.

A stopped pool stops its processes in order. A killed one cannot, so on Linux the kernel sends each child
SIGTERM.
"""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1
"""The option of prctl(2), from <linux/prctl.h>."""

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def stop_with_parent() -> None:
    """Request SIGTERM at the parent's death. Called in the child between fork and exec."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
