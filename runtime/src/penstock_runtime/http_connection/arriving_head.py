"""The head of an HTTP request while it arrives: URL and headers."""

from urllib.parse import unquote

import httptools

from penstock_runtime.http_request import Connection, Header, HttpRequest


class ArrivingHead:
    """A request's head while it arrives. Its fields exist once the head has begun.

    expects_100: whether the client waits for `100 Continue` before it sends the body.
    """

    __slots__ = ("_headers", "_url", "expects_100")

    def __init__(self) -> None:
        self._url, self._headers = b"", list[Header]()
        self.expects_100 = False

    @property
    def size_bytes(self) -> int:
        """Return the bytes that have arrived, without the request line's method and version."""
        return len(self._url) + sum([len(name) + len(value) + 4 for name, value in self._headers])

    def add_url(self, url: bytes) -> None:
        """Add a part of the URL."""
        self._url += url

    def add_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expects_100 = True
        self._headers.append((name, value))

    def request(self, connection: Connection, parser: httptools.HttpRequestParser) -> HttpRequest:
        """Return the request of a complete head."""
        version = parser.get_http_version()
        return HttpRequest(
            connection,
            parser.get_method().decode("ascii"),
            _path(self._url),
            self._headers,
            version=version,
            keep_alive=version == "1.1" and parser.should_keep_alive(),
            expects_100=self.expects_100 and version == "1.1",
        )

    def without_upgrade(self, parser: httptools.HttpRequestParser) -> bytes:
        """Return the bytes of a complete head without the header `upgrade`."""
        lines = [b"%b %b HTTP/%b" % (parser.get_method(), self._url, parser.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in self._headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])


def _path(url: bytes) -> str:
    """Return a URL's path, decoded."""
    path = (httptools.parse_url(url).path or b"/").decode("ascii")
    return unquote(path) if "%" in path else path
