"""Server-sent events as OpenAI's API writes them: `data: {…}` and an empty line."""


class EventStream:
    """Cuts a byte stream into events, whatever pieces it arrives in."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of every event that this piece completes."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
