"""HTTP pages of a process for probes, Prometheus and people.

    app = pages_app("penstock-sidecar of r0", {"/metrics": Page("for Prometheus", registry_text, PROMETHEUS)})

`/` lists the pages. They are not for clients of the API, and are served on a separate port.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST

from penstock_runtime.http_connection.bounds import HttpBounds
from penstock_runtime.http_request import JSON, App, HttpRequest
from penstock_runtime.openai_errors import ApiError

PLAIN_TEXT = b"text/plain; charset=utf-8"
PROMETHEUS = CONTENT_TYPE_LATEST.encode()

PAGES_BOUNDS = HttpBounds(head_bytes=16384, connections=256)
"""Bounds of a port that serves pages, which has few clients with small requests."""

PAGES_DRAIN_S = 1.0
"""Seconds for which a scrape in progress may continue when the process stops."""

READERS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a process. about: its line in the index. body: returns its body, or raises ApiError."""

    about: str
    body: Callable[[], bytes]
    content_type: bytes = JSON


def pages_app(title: str, pages: Mapping[str, Page]) -> App:
    """Serve each page at its path, and their list at `/`."""
    index = _index(title, pages)
    served = {"/": Page("this list", lambda: index, PLAIN_TEXT), **pages}

    async def app(request: HttpRequest) -> None:
        path, method = request.path[:256], request.method
        page = served.get(path)
        if page is None:
            raise ApiError(404, f"there is no page at {path}; / lists the pages", code="not_found")
        if method not in READERS:
            raise ApiError(
                405,
                f"{path} takes {' and '.join(READERS)}, not {method}",
                code="method_not_allowed",
                headers=(("allow", ", ".join(READERS)),),
            )
        await request.answer(page.body(), content_type=page.content_type)

    return app


def _index(title: str, pages: Mapping[str, Page]) -> bytes:
    width = max(map(len, pages))
    lines = [title, "", *(f"{path:{width}}  {page.about}" for path, page in pages.items()), ""]
    return "\n".join(lines).encode()
