"""What an accepted request brings to its engine: SLO fields, and a ticket that proves them.

An engine whose port routers reach reads the fields of tickets only (`penstock_core.domain.ticket`). One that
is older, or that only the sidecar reaches, reads them as they are.
"""

from collections.abc import Callable

from penstock_core.domain.engine_fields import Scalar, to_fields
from penstock_core.domain.ticket import TICKET, EngineTicket, sealed
from penstock_core.domain.verdict import Admitted, Verdict

from penstock_sidecar.requests.replica_request import ReplicaRequest


def slo_fields(request: ReplicaRequest, verdict: Verdict | None, now_s: float) -> dict[str, Scalar]:
    """Return the SLO fields of a request with this verdict that is sent to the engine now."""
    assert request.job is not None
    counts = isinstance(verdict, Admitted) and verdict.counts_on_cache
    return to_fields(request.job, now_s, counts_on_cache=counts)


class Tickets:
    """Seals tickets with the key that the engine has too; b"" is none, and seals nothing.

    checked: returns whether the engine checks tickets now, as its reports say.
    """

    def __init__(self, key: bytes = b"", checked: Callable[[], bool] = lambda: False) -> None:
        self._key, self._checked = key, checked

    @property
    def admit_routers(self) -> bool:
        """Whether a router that sends a ticket to the engine itself is served as the ticket says."""
        return bool(self._key) and self._checked()

    def field(self, request: ReplicaRequest, fields: dict[str, Scalar], now_s: float) -> dict[str, Scalar]:
        """Return the field with the request's ticket, issued now; none without a key."""
        if not self._key:
            return {}
        return {TICKET: sealed(EngineTicket(fields, now_s, request.sequences), self._key)}

    def for_router(self, request: ReplicaRequest, verdict: Verdict, now_s: float) -> bytes:
        """Return the `vllm_xargs` with which its router sends a request to the engine."""
        assert request.body is not None
        return request.body.xargs_with(self.field(request, slo_fields(request, verdict, now_s), now_s))
