"""Finds frames of HTTP/2 that are too long by their headers.

h2 refuses such a frame once it has it whole, so a peer could make this end keep 16 MiB. A frame begins with
its length in three bytes, and six further bytes precede its content (RFC 9113, §4.1).
"""

from h2.exceptions import FrameTooLargeError

PREFACE_BYTES = 24
"""Bytes of a client before its first frame (RFC 9113, §3.4)."""

HEADER_BYTES, LENGTH_BYTES = 9, 3


class FrameLengths:
    """The frames that one peer sends.

    preface_bytes: what comes before the first. most_bytes: longest content.
    """

    def __init__(self, preface_bytes: int, most_bytes: int) -> None:
        self._skip, self._most_bytes = preface_bytes, most_bytes
        self._begun = b""  # of a length that has not arrived whole

    def check(self, data: bytes) -> None:
        """Take the next bytes. Raises FrameTooLargeError."""
        data = self._begun + data if self._begun else data
        at, size = self._skip, len(data)
        while size - at >= LENGTH_BYTES:
            length = int.from_bytes(data[at : at + LENGTH_BYTES], "big")
            if length > self._most_bytes:
                raise FrameTooLargeError(f"a frame of {length} bytes, over {self._most_bytes}")
            at += HEADER_BYTES + length
        self._skip, self._begun = max(at - size, 0), data[at:]
