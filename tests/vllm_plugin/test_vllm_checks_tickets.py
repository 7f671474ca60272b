"""Inside vLLM's scheduler, a request has the SLO of its sidecar's ticket, and is best effort without one."""

import time
from pathlib import Path
from typing import Any

from penstock_core.domain.engine_fields import ticket_key_file
from penstock_core.domain.ticket import TICKET, EngineTicket, sealed
from penstock_proto.ticket_key import write_new_key
from virtual.engine import Engine, Kind

FIELDS: dict[str, Any] = {
    "penstock_tier": "chat",
    "penstock_ttft_s": 1.0,
    "penstock_tpot_s": 0.05,
    "penstock_best_effort": False,
}


def test_requests_with_and_without_a_ticket_are_served_by_their_right(tmp_path: Path) -> None:
    telemetry = tmp_path / "telemetry.sock"
    key = write_new_key(Path(ticket_key_file(str(telemetry))))
    engine = Engine(Kind(more={"telemetry": str(telemetry), "tickets": "required"}))
    scheduler = engine.scheduler
    try:
        ticket = sealed(EngineTicket(FIELDS | {"penstock_id": "mine"}, time.monotonic()), key)
        own, forged = FIELDS | {"penstock_id": "own"}, {TICKET: "forged"}
        carried = ({TICKET: ticket}, {TICKET: ticket}, own, forged, None)
        for number, fields in enumerate(carried):
            engine.add(f"r{number}", 100, 5, fields=fields)
        jobs = [scheduler.ledger.by_id[f"r{number}"].job for number in range(len(carried))]
        assert [job.best_effort for job in jobs] == [False, True, True, True, True]
        assert [job.request.id for job in jobs] == ["mine", "r1", "r2", "r3", "r4"]
        assert {job.request.tier for job in jobs[1:]} == {"direct"}
        while scheduler.requests:
            engine.end_due(engine.begin())
        assert engine.finished == {f"r{number}" for number in range(len(carried))}
        assert scheduler.faults.counted == {}
    finally:
        scheduler.shutdown()
