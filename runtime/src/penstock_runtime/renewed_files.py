"""Values read from files that are renewed in place, like a certificate and its key.

    files = RenewedFiles((cert, key), read_pair)
    files.reload()    # the new pair, or None if it is unchanged

Call `reload` before each use of the value. If a renewal is incomplete or files cannot be read, the last valid
value is kept until the files change again.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

T = TypeVar("T")
Stamp = tuple[tuple[int, int, int, int], ...]
"""Device, inode, modification and change time of each file."""

log = structlog.get_logger()


class RenewedFiles(Generic[T]):
    """A value and the files that it is read from. Thread-safe.

    value: the last valid value. read: reads the value; raises OSError if it is invalid.
    """

    def __init__(self, files: Sequence[Path], read: Callable[[], T]) -> None:
        """Read the value. Raises OSError."""
        self._files, self._read, self._lock = files, read, threading.Lock()
        self._stamp = _stamp(files)
        self._last_warning = ""
        self.value = read()

    def reload(self) -> T | None:
        """Return the value if it has changed since the last call, else None."""
        with self._lock:
            try:
                stamp = _stamp(self._files)
                if stamp == self._stamp:
                    return None
                self._stamp = stamp
                value = self._read()
                if _stamp(self._files) != stamp:  # renewed while they were read: the next call reads them
                    return None
            except OSError as error:
                self._warn_once(error)
                return None
            self.value, self._last_warning = value, ""
            log.info("files renewed", file=str(self._files[0]))
            return value

    def _warn_once(self, error: OSError) -> None:
        """Log a reason once, because clients can trigger any number of handshakes."""
        warning = f"{error.filename}: {error.strerror}"
        if warning != self._last_warning:
            self._last_warning = warning
            log.warning("files not renewed", file=error.filename, why=error.strerror)


def _stamp(files: Sequence[Path]) -> Stamp:
    """Return a stamp that changes with the files. Kubernetes renews a mounted Secret by replacing a link."""
    found = [file.stat() for file in files]
    return tuple((stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns) for stat in found)
