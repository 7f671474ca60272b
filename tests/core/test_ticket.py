"""An engine accepts only its sidecar's tickets, once and before they expire."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.engine_fields import Scalar, ticket_key_file
from penstock_core.domain.ticket import (
    LONGEST_TICKET,
    MOST_REMEMBERED,
    TICKET,
    VALID_S,
    EngineTicket,
    SloFields,
    TicketCheck,
    TicketFault,
    opened,
    sealed,
)

KEY, OTHER_KEY = b"k" * 32, b"o" * 32

fields = st.dictionaries(
    st.text(max_size=20), st.text(max_size=20) | st.integers() | st.booleans() | st.floats(0, 1e9)
).map(lambda some: {**some, "penstock_id": "r-1"})


def issued(id: str = "r-1", at_s: float = 100.0, uses: int = 1) -> str:
    return sealed(EngineTicket({"penstock_id": id, "penstock_best_effort": False}, at_s, uses), KEY)


def checking(key: bytes = KEY) -> TicketCheck:
    check = TicketCheck()
    check.use(key)
    return check


@given(fields, st.floats(0, 1e9), st.integers(1, 1000))
def test_an_opened_ticket_equals_the_sealed_one(some: Mapping[str, Scalar], at_s: float, uses: int) -> None:
    ticket = EngineTicket(some, at_s, uses)
    assert opened(sealed(ticket, KEY), KEY) == ticket


@given(st.data())
def test_an_altered_ticket_is_never_accepted(data: st.DataObject) -> None:
    text = issued()
    at = data.draw(st.integers(0, len(text) - 1))
    instead = data.draw(st.text(max_size=3).filter(lambda some: some != text[at]))
    assert checking().accept(text[:at] + instead + text[at + 1 :], "e-1", 100.0) is TicketFault.FORGED


@given(st.text() | st.integers() | st.booleans() | st.binary() | st.floats())
def test_a_forged_ticket_is_never_accepted(text: object) -> None:
    assert checking().accept(text, "e-1", 100.0) is TicketFault.FORGED


@given(st.binary(min_size=1).filter(lambda key: key.rstrip(b"\0") != KEY))
def test_a_ticket_of_another_key_is_never_accepted(key: bytes) -> None:
    assert checking(key).accept(issued(), "e-1", 100.0) is TicketFault.FORGED


def test_no_ticket_is_accepted_without_a_key() -> None:
    assert checking(b"").accept(sealed(EngineTicket({}, 100.0), b""), "e-1", 100.0) is TicketFault.FORGED


def test_a_request_without_a_ticket_is_refused() -> None:
    assert checking().accept(None, "e-1", 100.0) is TicketFault.MISSING


def test_a_ticket_that_is_too_long_is_not_parsed() -> None:
    ticket = EngineTicket({"penstock_id": "r" * LONGEST_TICKET}, 100.0)
    assert checking().accept(sealed(ticket, KEY), "e-1", 100.0) is TicketFault.FORGED


@given(st.floats(0, 1e6), st.floats(0, VALID_S))
def test_a_ticket_is_accepted_while_it_is_valid(at_s: float, later_s: float) -> None:
    now_s = at_s + later_s
    expected = now_s - at_s <= VALID_S
    assert isinstance(checking().accept(issued(at_s=at_s), "e-1", now_s), EngineTicket) is expected


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6))
def test_an_expired_ticket_is_never_accepted(at_s: float, later_s: float) -> None:
    assert checking().accept(issued(at_s=at_s), "e-1", at_s + VALID_S + later_s) is TicketFault.EXPIRED


def test_a_ticket_issued_in_the_future_is_not_accepted() -> None:
    assert checking().accept(issued(at_s=100.0), "e-1", 99.9) is TicketFault.EXPIRED


@given(st.integers(1, 5), st.lists(st.floats(0, 3 * VALID_S), max_size=20))
def test_a_ticket_is_never_accepted_for_more_answers_than_it_is_for(uses: int, times_s: list[float]) -> None:
    check, text = checking(), issued(at_s=0.0, uses=uses)
    verdicts = [check.accept(text, f"e-{number}", now_s) for number, now_s in enumerate(sorted(times_s))]
    accepted = [one for one in verdicts if isinstance(one, EngineTicket)]
    assert len(accepted) == min(uses, sum(now_s <= VALID_S for now_s in times_s))


def test_a_used_ticket_is_refused_as_used_until_it_expires() -> None:
    check, text = checking(), issued(at_s=100.0)
    check.accept(text, "e-1", 100.0)
    assert check.accept(text, "e-2", 100.0 + VALID_S) is TicketFault.USED
    assert check.accept(text, "e-2", 100.1 + VALID_S) is TicketFault.EXPIRED


def test_an_engine_may_ask_again_about_the_same_answer() -> None:
    check, text = checking(), issued()
    assert check.accept(text, "e-1", 100.0) == check.accept(text, "e-1", 105.0) != TicketFault.USED


def test_a_new_key_ends_the_old_ones_tickets() -> None:
    check, text = checking(), issued()
    check.accept(text, "e-1", 100.0)
    check.use(KEY)
    assert isinstance(check.accept(text, "e-1", 100.0), EngineTicket)
    check.use(OTHER_KEY)
    assert check.accept(text, "e-1", 100.0) is TicketFault.FORGED and len(check) == 0


def test_ids_are_forgotten_once_their_tickets_have_expired() -> None:
    check = checking()
    for number in range(10):
        check.accept(issued(f"r-{number}", float(number)), "e", float(number))
    assert len(check) == 10
    check.accept(issued("last", 15.0), "e", 15.0)
    assert len(check) == 6  # those accepted within the time for which a ticket is valid


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_REMEMBERED > 6_000 * VALID_S
    monkeypatch.setattr("penstock_core.domain.ticket.MOST_REMEMBERED", 2)
    check = checking()
    verdicts = [check.accept(issued(id, uses=2), "e-1", 100.0) for id in ("a", "b", "c")]
    assert verdicts[2] is TicketFault.FULL and len(check) == 2
    remembered = check.accept(issued("a", uses=2), "e-2", 100.0)
    assert isinstance(remembered, EngineTicket)


def test_the_key_is_beside_the_socket() -> None:
    assert ticket_key_file("/run/penstock/telemetry.sock") == "/run/penstock/telemetry.sock.ticket-key"


def test_fields_count_from_the_ticket_s_issue() -> None:
    xargs: dict[str, Scalar] = {TICKET: issued(at_s=100.0), "penstock_id": "another", "seed": 7}
    fields = TicketCheck().fields(xargs, KEY, "e-1", now_s=101.0, read_s=100.5)
    assert fields == SloFields({"penstock_id": "r-1", "penstock_best_effort": False}, 100.0)


def test_a_request_s_own_fields_do_not_count() -> None:
    xargs: dict[str, Scalar] = {"penstock_best_effort": False, "penstock_ttft_s": 0.1}
    fields = TicketCheck().fields(xargs, KEY, "e-1", now_s=101.0, read_s=100.5)
    assert fields == SloFields({}, 100.5, TicketFault.MISSING)
