"""Faults of the sidecar's own code, contained where they occur.

An exception while a request is read, decided or forwarded ends only that request: it is answered with
`FAILURE_INTERNAL`, logged and counted. Periodic work for all requests is tried again at its next time.
"""

from types import TracebackType

import structlog
from prometheus_client import Counter

from penstock_sidecar.requests.replica_request import ReplicaRequest

log = structlog.get_logger()


class Faults:
    """Counts faults by where they occur, and ends their requests."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    def of(self, request: ReplicaRequest, where: str) -> "_Contained":
        """Return a context in which a fault ends one request."""
        return _Contained(self, where, request)

    def within(self, where: str) -> "_Contained":
        """Return a context in which a fault is only counted and logged."""
        return _Contained(self, where, None)

    def count(self, where: str, request: ReplicaRequest | None) -> None:
        """Count and log the exception that is being handled, and end its request."""
        self._counter.labels(where).inc()
        if request is None:
            log.exception("sidecar fault", where=where)
            return
        log.exception("request failed", request=request.request_id, where=where)
        if not request.ended:
            request.internal_error()


class _Contained:
    """A context of faults. It is a class because a generator takes three times as long."""

    __slots__ = ("_faults", "_request", "_where")

    def __init__(self, faults: Faults, where: str, request: ReplicaRequest | None) -> None:
        self._faults, self._where, self._request = faults, where, request

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._faults.count(self._where, self._request)
        return True
