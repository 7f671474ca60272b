"""Parses server-sent events as OpenAI's API writes them: `data: {…}` and an empty line."""


class EventParser:
    """Incremental parser of a byte stream."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of every event that this piece completes."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
