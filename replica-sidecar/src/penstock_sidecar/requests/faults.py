"""A fault of our own ends the one request that met it, and nothing else.

Whatever raises while a request is read, decided or carried is caught here: the request is answered with
`FAILURE_INTERNAL`, the log gets one line with the cause, and a counter says that there was one. What is done
for all requests together, like a tick, is done again next time.
"""

import contextlib
from collections.abc import Iterator

import structlog
from prometheus_client import Counter

from penstock_sidecar.requests.carried import Carried

log = structlog.get_logger()


class Faults:
    """Counts faults by where they came up, and ends the requests that they are of."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    @contextlib.contextmanager
    def of(self, carried: Carried, where: str) -> Iterator[None]:
        """Contain the block's faults in one request."""
        try:
            yield
        except Exception:
            self._counter.labels(where).inc()
            log.exception("request broke", request=carried.request_id, where=where)
            if not carried.ended:
                carried.broke()

    @contextlib.contextmanager
    def within(self, where: str) -> Iterator[None]:
        """Go on after the block, whatever it raised."""
        try:
            yield
        except Exception:
            self._counter.labels(where).inc()
            log.exception("sidecar fault", where=where)
