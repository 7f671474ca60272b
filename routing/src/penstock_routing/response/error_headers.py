"""Headers of every error."""

from collections.abc import Iterable, Iterator

from penstock_routing.request import request_head

SHOULD_RETRY = "x-should-retry"
"""OpenAI's clients heed it before the status."""

WORTH_A_RETRY = frozenset({408, 409, 425, 429})
"""Client errors that may go away by themselves."""


def common_error_headers(
    status: int, request_id: str, given: Iterable[tuple[str, str]] = ()
) -> Iterator[tuple[str, str]]:
    """Yield headers of an error. What is wrong with a request is still wrong when it comes again."""
    yield request_head.REQUEST_ID, request_id
    if 400 <= status < 500 and status not in WORTH_A_RETRY and SHOULD_RETRY not in dict(given):
        yield SHOULD_RETRY, "false"
