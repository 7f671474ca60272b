"""The SLO fields that an accepted request has for its engine, and the ticket that proves them.

An engine whose port is open to routers reads the fields only from tickets (`penstock_core.domain.ticket`). An
older engine, or one that only the sidecar reaches, reads them without a ticket.
"""

from collections.abc import Callable

from penstock_core.domain.engine_fields import Scalar, to_fields
from penstock_core.domain.ticket import TICKET, EngineTicket, sealed
from penstock_core.domain.verdict import Admitted, Verdict

from penstock_sidecar.requests.replica_request import ReplicaRequest


def slo_fields(request: ReplicaRequest, verdict: Verdict | None, now_s: float) -> dict[str, Scalar]:
    """Return the SLO fields of a request that is sent to the engine now."""
    assert request.job is not None
    counts = isinstance(verdict, Admitted) and verdict.counts_on_cache
    return to_fields(request.job, now_s, counts_on_cache=counts)


class Tickets:
    """Seals tickets with a key that the engine also has; with an empty key, none.

    checked: returns whether the engine checks tickets now, by its reports.
    """

    def __init__(self, key: bytes = b"", checked: Callable[[], bool] = lambda: False) -> None:
        self._key, self._checked = key, checked

    @property
    def admit_routers(self) -> bool:
        """Whether routers may send requests with a ticket to the engine."""
        return bool(self._key) and self._checked()

    def field(self, request: ReplicaRequest, fields: dict[str, Scalar], now_s: float) -> dict[str, Scalar]:
        """Return the field with the request's ticket, issued now; no field without a key."""
        if not self._key:
            return {}
        return {TICKET: sealed(EngineTicket(fields, now_s, request.sequences), self._key)}

    def for_router(self, request: ReplicaRequest, verdict: Verdict, now_s: float) -> bytes:
        """Return the `vllm_xargs` for a router that sends the request to the engine."""
        assert request.body is not None
        return request.body.xargs_with(self.field(request, slo_fields(request, verdict, now_s), now_s))
