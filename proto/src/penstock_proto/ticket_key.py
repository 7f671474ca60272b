"""The file with the key of tickets, which the sidecar writes and its engine reads.

It is beside the telemetry socket, in a folder that only these two share, and readable by their user only. A
sidecar writes a new key whenever it starts, so tickets of an earlier sidecar are invalid.
"""

import os
import secrets
from pathlib import Path

KEY_BYTES = 32
"""Length of a key: that of HMAC-SHA-256's output [RFC 2104, 3]."""


def write_new_key(path: Path) -> bytes:
    """Write a new key, in one piece, and return it. Raises OSError."""
    key, new = secrets.token_bytes(KEY_BYTES), path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
    new.rename(path)
    return key


class TicketKeyFile:
    """The key as an engine reads it. The file is read again when it has been replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[int, int] | None = None  # inode and time of change of the file that was read
        self._key = b""

    def key(self) -> bytes:
        """Return the present key; b"" if there is none."""
        try:
            state = self._path.stat()
            now = state.st_ino, state.st_mtime_ns
            if now != self._read:
                self._key, self._read = self._path.read_bytes(), now
        except OSError:
            return b""
        return self._key if len(self._key) == KEY_BYTES else b""
