"""A request to vLLM has the SLO of its sidecar's ticket, and is best effort without one."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from penstock_core.domain.engine_fields import ticket_key_file, to_fields
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Targets
from penstock_core.domain.ticket import TICKET, VALID_S, EngineTicket, TicketFault, sealed
from penstock_proto.ticket_key import KEY_BYTES, TicketKeyFile, write_new_key
from penstock_vllm.ledger import EngineLedger
from penstock_vllm.reports import Boundary, Reports
from penstock_vllm.settings import BadSetting, read_settings
from penstock_vllm.tickets import TicketFields
from penstock_vllm.view import KvMemory

NAMED = {"PENSTOCK_TIME_MODEL": "llama-3-8b-a100"}
REQUIRED = NAMED | {"PENSTOCK_TICKETS": "required"}


class Clock:
    """Seconds that a test sets."""

    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def fields_of(name: str = "r-1") -> dict[str, Any]:
    request = Request(name, "chat", 0.0, 100, 50, Targets(1.0, 0.1))
    return dict(to_fields(new_job(request, 30, best_effort=False), 0.25))


def asked(engine_id: str, xargs: dict[str, Any] | None) -> Any:
    """A request of vLLM's that has just come."""
    return SimpleNamespace(
        request_id=engine_id,
        num_prompt_tokens=100,
        max_tokens=50,
        num_computed_tokens=0,
        num_in_flight_tokens=0,
        num_stale_output_tokens=0,
        num_output_tokens=0,
        drop_stale_output=False,
        resumable=False,
        sampling_params=SimpleNamespace(extra_args=xargs),
    )


class Sidecar:
    """Its key, and an engine that reads that."""

    def __init__(self, folder: Path) -> None:
        self.telemetry = folder / "telemetry.sock"
        self.clock, self.key = Clock(), b""
        self.read_fields = TicketFields(self.telemetry, self.clock)
        self.ledger = EngineLedger(self.read_fields)

    def start(self) -> None:
        self.key = write_new_key(Path(ticket_key_file(str(self.telemetry))))

    def ticket(self, name: str = "r-1", uses: int = 1) -> dict[str, Any]:
        return {TICKET: sealed(EngineTicket(fields_of(name), self.clock.now_s, uses), self.key)}

    def job(self, engine_id: str, xargs: dict[str, Any] | None) -> Job:
        return self.ledger.add(asked(engine_id, xargs), self.clock.now_s, blocked=False).job


@pytest.fixture
def sidecar(tmp_path: Path) -> Sidecar:
    made = Sidecar(tmp_path)
    made.start()
    return made


def test_a_ticket_has_its_requests_slo(sidecar: Sidecar) -> None:
    ticket = sidecar.ticket()
    sidecar.clock.now_s += 0.5
    job = sidecar.job("cmpl-1", ticket)
    assert (job.request.id, job.request.tier, job.best_effort) == ("r-1", "chat", False)
    assert job.request.targets == Targets(1.0, 0.1)


def test_time_in_transit_to_the_engine_counts_as_spent(sidecar: Sidecar) -> None:
    ticket = sidecar.ticket()
    sidecar.clock.now_s += 0.5
    assert sidecar.job("cmpl-1", ticket).request.arrival_s == 50.0 - 0.25


@pytest.mark.parametrize("xargs", [None, {}, fields_of(), {TICKET: "penstock1.e30.e30"}, {TICKET: 5}])
def test_without_a_valid_ticket_a_request_is_best_effort(sidecar: Sidecar, xargs: Any) -> None:
    job = sidecar.job("cmpl-1", xargs)
    assert (job.request.id, job.request.tier, job.best_effort) == ("cmpl-1", "direct", True)
    assert job.request.targets == Targets()


def test_a_ticket_serves_one_request_only(sidecar: Sidecar) -> None:
    ticket = sidecar.ticket()
    sidecar.job("cmpl-1", ticket)
    assert sidecar.job("cmpl-2", ticket).best_effort
    assert sidecar.read_fields.refused == {TicketFault.USED: 1}


def test_each_answer_of_a_request_has_its_slo(sidecar: Sidecar) -> None:
    ticket = sidecar.ticket(uses=2)
    jobs = [sidecar.job(f"{number}_cmpl-1", ticket) for number in range(3)]
    assert [job.best_effort for job in jobs] == [False, False, True]
    assert [job.request.id for job in jobs[:2]] == ["r-1", "r-1~1"]


def test_an_expired_ticket_is_ignored(sidecar: Sidecar) -> None:
    ticket = sidecar.ticket()
    sidecar.clock.now_s += VALID_S + 0.1
    assert sidecar.job("cmpl-1", ticket).best_effort


def test_a_restarted_sidecar_has_another_key(sidecar: Sidecar) -> None:
    before = sidecar.ticket("r-1")
    sidecar.start()
    assert sidecar.job("cmpl-1", before).best_effort
    assert not sidecar.job("cmpl-2", sidecar.ticket("r-2")).best_effort


def test_before_its_sidecar_an_engine_serves_best_effort(tmp_path: Path) -> None:
    sidecar = Sidecar(tmp_path)
    assert sidecar.job("cmpl-1", sidecar.ticket()).best_effort
    sidecar.start()
    assert not sidecar.job("cmpl-2", sidecar.ticket()).best_effort


def test_a_refused_ticket_is_logged_once(sidecar: Sidecar, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "vllm.penstock"):
        for number in range(3):
            sidecar.job(f"cmpl-{number}", {TICKET: "none"})
            sidecar.job(f"direct-{number}", {})
            assert len(caplog.records) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "penstock: a ticket is forged: the request is best effort"
    ]


def test_the_key_is_readable_by_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "key"
    (tmp_path / "key.new").write_text("left over")
    key = write_new_key(path)
    assert (len(key), path.stat().st_mode & 0o777) == (KEY_BYTES, 0o600)
    assert TicketKeyFile(path).key() == key != write_new_key(path)


def test_a_truncated_key_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"k" * (KEY_BYTES - 1))
    assert TicketKeyFile(path).key() == b""


def test_reports_state_whether_tickets_are_checked() -> None:
    sent: list[Any] = []

    def send(report: Any) -> bool:
        sent.append(report)
        return True

    socket: Any = SimpleNamespace(send=send, lost=0)
    now = Boundary(None, 0, 0, 0, KvMemory(10, 10, 16), 0.0, None, {}, 0, 0, None)
    Reports(socket, checks_tickets=True).send(now._replace(rows=((), {})))  # type: ignore[arg-type]
    Reports(socket).send(now._replace(rows=((), {})))  # type: ignore[arg-type]
    assert [report.checks_tickets for report in sent] == [True, False]


def test_tickets_can_be_required(tmp_path: Path) -> None:
    assert read_settings({}, REQUIRED | {"PENSTOCK_TELEMETRY": "/run/t.sock"}).tickets
    assert not read_settings({}, NAMED).tickets


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (REQUIRED, "PENSTOCK_TICKETS: the key of tickets is beside the sidecar's socket; set PENSTOCK_TEL"),
        (NAMED | {"PENSTOCK_TICKETS": "yes"}, 'PENSTOCK_TICKETS: "yes" is not `required`; leave it out'),
    ],
)
def test_an_invalid_setting_for_tickets_is_explained(environment: dict[str, str], words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        read_settings({}, environment)
