"""Messages of a call: each behind a prefix of one byte, for compression, and its length in four bytes."""

from struct import Struct

from penstock_runtime.grpc.status import RpcError, Status

MESSAGE_BYTES = 64 * 2**20
"""Largest message in bytes. An answer with log probabilities has tens of megabytes."""

_PREFIX = Struct(">BI")


def with_prefix(message: bytes) -> bytes:
    """Return a message behind its prefix. Raises RpcError if it is too large."""
    if len(message) > MESSAGE_BYTES:
        raise RpcError(Status.RESOURCE_EXHAUSTED, f"a message of {len(message)} bytes, over {MESSAGE_BYTES}")
    return _PREFIX.pack(0, len(message)) + message


class MessageReader:
    """Splits the bytes of one direction of a call into messages. most_bytes: size of the largest one."""

    def __init__(self, most_bytes: int = MESSAGE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._pending = bytearray()

    @property
    def incomplete_bytes(self) -> int:
        """Bytes of a message that has begun and not ended."""
        return len(self._pending)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that these bytes complete. Raises RpcError at an invalid prefix."""
        if self._pending:
            self._pending += data
            if len(self._pending) < self._needed(self._pending, 0):
                return []
            data = bytes(self._pending)
            self._pending.clear()
        messages, at, size = [], 0, len(data)
        while size - at >= (needed := self._needed(data, at)):
            messages.append(data[at + _PREFIX.size : at + needed])
            at += needed
        self._pending += data[at:]
        return messages

    def _needed(self, data: bytes | bytearray, at: int) -> int:
        """Return the size of the message at an offset with its prefix, or of the prefix until it is there."""
        if len(data) - at < _PREFIX.size:
            return _PREFIX.size
        compressed, length = _PREFIX.unpack_from(data, at)
        if compressed:
            raise RpcError(Status.UNIMPLEMENTED, "compressed messages are not supported")
        if length > self._most_bytes:
            raise RpcError(Status.RESOURCE_EXHAUSTED, f"a message of {length} bytes, over {self._most_bytes}")
        return _PREFIX.size + int(length)
