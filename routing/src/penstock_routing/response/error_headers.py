"""Headers that all errors have."""

from collections.abc import Iterable, Iterator

from penstock_routing.request import request_head

SHOULD_RETRY = "x-should-retry"
"""Header that overrides the status in the decision of OpenAI's clients about a retry."""

WORTH_A_RETRY = frozenset({408, 409, 425, 429})
"""Client errors that a retry may avoid."""


def common_error_headers(
    status: int, request_id: str, given: Iterable[tuple[str, str]] = ()
) -> Iterator[tuple[str, str]]:
    """Yield headers of an error. A retry is discouraged if it would fail in the same way."""
    yield request_head.REQUEST_ID, request_id
    if 400 <= status < 500 and status not in WORTH_A_RETRY and SHOULD_RETRY not in dict(given):
        yield SHOULD_RETRY, "false"
