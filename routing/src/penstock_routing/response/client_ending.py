"""Records how a request ended for its client."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock_runtime.http_request import ClientGone, HttpRequest

from penstock_routing.request.outcome import Ending, Outcome
from penstock_routing.response.upstream_error import UpstreamError


@contextmanager
def client_ending(http: HttpRequest, outcome: Outcome) -> Iterator[None]:
    """Record why the block ended, if the client disconnected or was slow, or the replica failed."""
    try:
        yield
    except ClientGone:
        outcome.ending = Ending.CLIENT_GONE
        raise
    except UpstreamError as error:
        outcome.ending = Ending.INVALID if error.status < 500 else Ending.FAILED
        raise
    finally:
        if http.slow:
            outcome.ending = Ending.CLIENT_SLOW
