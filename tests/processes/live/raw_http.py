"""HTTP by hand, for what no client library would send."""

import json
import socket
from dataclasses import dataclass
from typing import Any

PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One response. status 0: the connection was closed without one."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """Return the object under `error`, in OpenAI's format."""
        content = json.loads(self.body)["error"]
        assert isinstance(content, dict)
        return content


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A well-formed POST with this body."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: pool",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


def chat(**fields: Any) -> bytes:
    """Return a valid chat body with changed fields."""
    messages = [{"role": "user", "content": "hello"}]
    return json.dumps({"model": "llama3-8b", "messages": messages, "max_tokens": 4, **fields}).encode()


def exchange(address: tuple[str, int], request: bytes, *, half_close: bool = False) -> Answer:
    """Send bytes, read one answer. A peer that neither answers nor closes fails the test."""
    with socket.create_connection(address, timeout=PATIENCE_S) as sock:
        try:
            sock.sendall(request)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused before it had read everything: the answer is there all the same
        return read_answer(sock)


def read_answer(sock: socket.socket) -> Answer:
    """One answer, to its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := _received(sock)):
            return Answer(0, {}, data)
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = headers.get("content-length")
    while length is None or len(body) < int(length):
        if headers.get("transfer-encoding") == "chunked" and body.endswith(b"0\r\n\r\n"):
            break
        if not (more := _received(sock)):
            break
        body += more
    return Answer(int(status_line.split()[1]), headers, body)


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(65536)
    except ConnectionResetError:
        return b""
    except TimeoutError:
        raise AssertionError(f"no answer within {PATIENCE_S:g} s") from None
