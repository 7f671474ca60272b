"""Headers of error responses."""

from collections.abc import Iterable, Iterator

from penstock_routing.request import request_head

SHOULD_RETRY = "x-should-retry"
"""Header that overrides the status in the decision of OpenAI's clients about a retry."""

RETRYABLE = frozenset({408, 409, 425, 429})
"""Statuses of client errors after which a retry may succeed."""


def common_error_headers(
    status: int, request_id: str, given: Iterable[tuple[str, str]] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the headers that every error has. given: headers that only this one has.

    `SHOULD_RETRY` tells clients not to retry if the retry would fail in the same way.
    """
    yield request_head.REQUEST_ID, request_id
    if 400 <= status < 500 and status not in RETRYABLE and SHOULD_RETRY not in dict(given):
        yield SHOULD_RETRY, "false"
