"""An HTTP client for many concurrent connections that sends any bytes and reads all answers."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import httptools
from live.raw_http import Answer
from patience import PATIENCE_S


class Answers:
    """The answers on one connection, as httptools reads them."""

    def __init__(self) -> None:
        self.whole: list[Answer] = []
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body = b""

    def feed(self, data: bytes) -> None:
        """Read on. Raises httptools.HttpParserError at what is no HTTP."""
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._headers, self._body = {}, b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # else it is a word before the answer
            self.whole.append(Answer(status, self._headers, self._body))


async def exchange(
    address: tuple[str, int],
    pieces: Sequence[bytes],
    *,
    answers: int | None = None,
    half_closes: bool = False,
    leaves: bool = False,
) -> list[Answer]:
    """Send the pieces, and return what is answered: so many answers, or all until the connection ends.

    leaves: close at once instead. A peer that neither answers nor closes fails the test.
    """
    got = Answers()
    reader, writer = await asyncio.open_connection(*address)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await _send(writer, pieces, half_closes)
            while not leaves and (answers is None or len(got.whole) < answers):
                with suppress(ConnectionResetError):
                    if data := await reader.read(1 << 16):
                        got.feed(data)
                        continue
                break
    except TimeoutError:
        raise AssertionError(f"neither answered nor closed within {PATIENCE_S:g} s") from None
    finally:
        writer.transport.abort()
    return got.whole


async def _send(writer: asyncio.StreamWriter, pieces: Sequence[bytes], half_closes: bool) -> None:
    """A peer that has refused may have stopped reading: its answer is there all the same."""
    with suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if half_closes:
            writer.write_eof()
