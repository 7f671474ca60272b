"""Misuse of an HTTP connection: truncated, invalid, slow or concurrent requests."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from hostile.bodies import CHAT, make_body
from live.raw_http import chat, post


@dataclass(frozen=True, slots=True)
class Exchange:
    """Pieces that are sent one after the other, and what the client does then.

    leaves: it closes without reading an answer. half_closes: it says that nothing more comes.
    """

    pieces: tuple[bytes, ...]
    leaves: bool = False
    half_closes: bool = False

    @property
    def data(self) -> bytes:
        """Everything that is sent."""
        return b"".join(self.pieces)


def make_exchange(random: Random) -> Exchange:
    """Return one misuse of HTTP."""
    return random.choice(MISUSES)(random)


def _request(random: Random) -> bytes:
    """A request that is right as HTTP."""
    if random.random() < 0.5:
        return post(CHAT, chat(stream=random.random() < 0.5))
    body = make_body(random, 1 << 12)
    return post(body.path, body.data)


def _cut(random: Random) -> Exchange:
    data = _request(random)
    return Exchange((data[: random.randrange(1, len(data))],), half_closes=True)


def _wrong_length(random: Random) -> Exchange:
    given = random.choice(("-1", "0", "1", "5, 5", "5, 6", "+4", "0x10", "", "9" * 30, "1e2", "4 4", "\t7"))
    return Exchange((_head(f"content-length: {given}") + chat(),), half_closes=True)


def _both_lengths(random: Random) -> Exchange:
    extra = random.choice(("transfer-encoding: chunked", "content-length: 3", "transfer-encoding: gzip"))
    data = chat()
    return Exchange((_head(f"content-length: {len(data)}", extra) + data,), half_closes=True)


def _chunks(random: Random) -> Exchange:
    """Return a chunked body, with valid chunks or one invalid chunk."""
    data = make_body(random, 1 << 12).data or b"{}"
    size = random.randint(1, max(1, len(data) // 2))
    chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in _parts(data, size)]
    ending = random.choice((b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nx-trailer: 1\r\n\r\n", b"", b"0\r\n"))
    wrong = (
        b"zz\r\nabc\r\n",
        b"-5\r\nabc\r\n",
        b"f" * 40 + b"\r\n",
        b"3;ext=1\r\nabc\r\n",
        b"3\nabc\n",
        b"\r\n",
    )
    if random.random() < 0.5:
        chunks.insert(random.randint(0, len(chunks)), random.choice(wrong))
    return Exchange((_head("transfer-encoding: chunked") + b"".join(chunks) + ending,), half_closes=True)


def _head_size(random: Random) -> Exchange:
    name, count = random.choice((("x-a", 1), ("x-a", 300), ("cookie", 40)))
    size = random.choice((10, 1000, 20_000, 70_000)) // count
    lines = [f"{name}-{n}: {'y' * size}" for n in range(count)]
    return Exchange((post(CHAT, chat(), *lines),), half_closes=True)


def _wrong_head(random: Random) -> Exchange:
    line = random.choice(
        (
            b"GET / HTTP/1.1\r\nhost: a\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"POST /v1/chat/completions HTTP/1.1\nhost: pool\n",
            b"POST /v1/chat/completions HTTP/1.1\r\nno colon\r\n",
            b"POST /v1/chat/completions HTTP/1.1\r\n folded: 1\r\n",
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nx: \x00\x01\r\n",
            b"P\xd0ST /v1/chat/completions HTTP/1.1\r\n",
            b"CONNECT pool:443 HTTP/1.1\r\nhost: pool\r\n",
            b"POST /%00/..%2f HTTP/1.1\r\nhost: a\r\n",
            b"POST " + b"/v1" * 4000 + b" HTTP/1.1\r\nhost: a\r\n",
            b"POST http://[::1 HTTP/1.1\r\nhost: a\r\n",
            b"HTTP/1.1 200 OK\r\n",
            b"\r\n" * 50,
        )
    )
    return Exchange((line + b"\r\n" + chat(),), half_closes=True)


def _noise(random: Random) -> Exchange:
    return Exchange((random.randbytes(random.choice((1, 20, 400, 5000))),), half_closes=True)


def _several(random: Random) -> Exchange:
    """Requests sent without waiting for answers."""
    return Exchange((b"".join(_request(random) for _ in range(random.randint(2, 5))),), half_closes=True)


def _leaves(random: Random) -> Exchange:
    """Gone at some moment: in the head, in the body, or before the answer."""
    data = post(CHAT, chat(stream=random.random() < 0.5, max_tokens=200, ignore_eos=True))
    return Exchange((data[: random.choice((5, 60, len(data) - 3, len(data), len(data)))],), leaves=True)


def _slow(random: Random) -> Exchange:
    """A request in many small pieces, which may never be whole."""
    data = _request(random)[:2000]
    pieces = _parts(data, random.choice((1, 7, 50)) if len(data) < 300 else 100)
    return Exchange(tuple(pieces[:40]), half_closes=True)


def _parts(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def _head(*lines: str) -> bytes:
    return "\r\n".join((f"POST {CHAT} HTTP/1.1", "host: pool", *lines, "", "")).encode()


MISUSES: tuple[Callable[[Random], Exchange], ...] = (
    _cut,
    _wrong_length,
    _both_lengths,
    _chunks,
    _head_size,
    _wrong_head,
    _noise,
    _several,
    _leaves,
    _slow,
)
