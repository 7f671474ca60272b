"""Pages of a process: which there are, and answers to other paths."""

import http_by_hand
import orjson
import pytest
from penstock_runtime.pages import PLAIN_TEXT, Page, pages_app

PAGES = {
    "/metrics": Page("for Prometheus", lambda: b"up 1", PLAIN_TEXT),
    "/state": Page("for people", lambda: b"{}"),
}


async def asked(path: str, method: str = "GET") -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, headers and body."""
    return await http_by_hand.asked(pages_app("penstock", PAGES), f"{method} {path} HTTP/1.1".encode())


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_page_is_served_at_its_path(method: str) -> None:
    status, headers, body = await asked("/metrics", method)
    assert (status, headers[b"content-type"], headers[b"content-length"]) == (200, PLAIN_TEXT, b"4")
    assert body == (b"up 1" if method == "GET" else b"")
    assert (await asked("/state"))[1][b"content-type"] == b"application/json"


async def test_the_index_lists_every_page_in_columns() -> None:
    status, headers, body = await asked("/")
    assert (status, headers[b"content-type"]) == (200, PLAIN_TEXT)
    assert body.decode() == "penstock\n\n/metrics  for Prometheus\n/state    for people\n"


async def test_an_unknown_path_is_answered_with_the_index() -> None:
    status, _, body = await asked("/x" + "y" * 1000)
    error = orjson.loads(body)["error"]
    assert (status, error["code"]) == (404, "not_found")
    assert error["message"] == f"there is no page at /x{'y' * 254}; / lists the pages"


async def test_a_page_is_read_only() -> None:
    status, headers, body = await asked("/state", "DELETE")
    error = orjson.loads(body)["error"]
    assert (status, headers[b"allow"], error["code"]) == (405, b"GET, HEAD", "method_not_allowed")
    assert error["message"] == "/state takes GET and HEAD, not DELETE"
