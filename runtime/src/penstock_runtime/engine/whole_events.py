"""Holds back an event of a stream until all of it has come.

A client can read no part of an event. Whatever follows when the engine or the replica is lost, an error or
the rest of the answer, must begin behind a whole one, so only whole events are passed on. What a stream
leaves incomplete at its end is dropped, as clients drop it [WHATWG HTML, 9.2.6].
"""

from penstock_runtime.engine.sse import EVENT_BYTES

_LINE_END, _CRLF_LINE_END = b"\n\n", b"\n\r\n"
"""Two ways in which the blank line that ends an event follows the line before it."""


class WholeEvents:
    """Splits one stream into whole events. An event of more than `EVENT_BYTES` is passed on in parts."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the events that are whole with `data`, the next bytes of the stream."""
        if not self._rest and data.endswith(_LINE_END):  # as usual
            return data
        searched = max(len(self._rest) - 2, 0)  # a blank line may begin in the rest
        data = self._rest + data
        end = _last_end(data, searched)
        if len(data) - end > EVENT_BYTES:
            end = len(data)
        self._rest = data[end:]
        return data[:end]


def _last_end(data: bytes, begin: int) -> int:
    """Return where the last event that ends behind `begin` ends; 0 where none does."""
    ends = [at + len(blank) for blank in (_LINE_END, _CRLF_LINE_END) if (at := data.rfind(blank, begin)) >= 0]
    return max(ends, default=0)
