"""What else happens to an answer that is written: headers are added, and its progress is reported."""

from collections.abc import Sequence

from penstock_proto.engine_calls import Header
from penstock_proto.sidecar_calls import SidecarCall


class AnswerWatch:
    """The watch over one answer. call: to which it is reported; None for an answer that nobody follows."""

    def __init__(self, call: SidecarCall | None = None, headers: Sequence[Header] = ()) -> None:
        self._call, self.headers = call, headers

    def wrote(self, data: bytes) -> None:
        """Note a part of a stream that was written."""
        if self._call is not None:
            self._call.wrote(data)

    def stream_ended(self) -> None:
        """Note that a stream was written to its end."""
        if self._call is not None:
            self._call.stream_ended()

    def answered(self, body: bytes) -> None:
        """Note an answer that was written in one piece."""
        if self._call is not None:
            self._call.answered(body)


UNWATCHED = AnswerWatch()
