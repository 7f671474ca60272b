"""Holds back an event of a stream until it is complete.

Clients only read complete events. If the engine or the replica is lost, an error event or the rest of the
answer follows, which must begin after a complete event. So only complete events are passed on. An incomplete
event at the end of a stream is dropped, as clients do [WHATWG HTML, 9.2.6].
"""

from typing import Protocol

from penstock_proto.sse import EVENT_BYTES

_LINE_END, _CRLF_LINE_END = b"\n\n", b"\n\r\n"
"""Line end and blank line at the end of an event, without and with CR."""


class EventFilter(Protocol):
    """Selects what is passed on of one stream."""

    def feed(self, data: bytes) -> bytes:
        """Return the complete events to pass on, after `data`, the next bytes of the stream."""


class WholeEvents:
    """Splits one stream into complete events. An event longer than `EVENT_BYTES` is passed on in parts."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the events that `data`, the next bytes of the stream, completes."""
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
    """Return the end of the last event that ends after `begin`; 0 if there is none."""
    ends = [at + len(blank) for blank in (_LINE_END, _CRLF_LINE_END) if (at := data.rfind(blank, begin)) >= 0]
    return max(ends, default=0)
