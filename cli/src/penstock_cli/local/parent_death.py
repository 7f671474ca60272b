"""Children that do not outlive their parent, however it dies.

A pool that is stopped stops its processes in order. One that is killed cannot; on Linux the kernel then
tells each child to stop.
"""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def stop_with_parent() -> None:
    """Called in the child between fork and exec."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
