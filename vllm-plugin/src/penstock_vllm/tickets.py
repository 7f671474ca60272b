"""The SLO fields of a request to vLLM, and the check of its ticket.

If tickets are not required, they are the `penstock_…` fields of its `vllm_xargs`: only the sidecar sends
requests, and it overwrites fields that a client has written. If routers send requests too, only fields in a
ticket of the sidecar count (`penstock_core.domain.ticket`). A request without a valid ticket is best effort.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock_core.domain.engine_fields import ticket_key_file
from penstock_core.domain.ticket import SloFields, TicketCheck, TicketFault
from penstock_proto.ticket_key import TicketKeyFile

log = logging.getLogger("vllm.penstock")

ReadFields = Callable[[Mapping[str, Any], str, float], SloFields]
"""Called with `vllm_xargs`, the engine's id of the request, and the time at which the engine has read it."""


def unchecked(xargs: Mapping[str, Any], engine_id: str, read_s: float) -> SloFields:
    """Return the fields unchecked."""
    return SloFields(xargs, read_s)


class TicketFields:
    """Reads the fields of valid tickets. clock: the machine's. refused: counts by cause."""

    def __init__(self, telemetry: Path, clock: Callable[[], float]) -> None:
        self._key_file, self._clock = TicketKeyFile(Path(ticket_key_file(str(telemetry)))), clock
        self._check = TicketCheck()
        self.refused: Counter[TicketFault] = Counter()

    def __call__(self, xargs: Mapping[str, Any], engine_id: str, read_s: float) -> SloFields:
        """Return the fields of a request's ticket; empty without a valid ticket."""
        fields = self._check.fields(xargs, self._key_file.key(), engine_id, self._clock(), read_s)
        if fields.refused is not None:
            self.refused[fields.refused] += 1
            if self.refused[fields.refused] == 1 and fields.refused is not TicketFault.MISSING:
                log.warning("penstock: a ticket is %s: the request is best effort", fields.refused.value)
        return fields
