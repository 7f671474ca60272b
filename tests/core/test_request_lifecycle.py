from itertools import product
from pathlib import Path

import pytest
from penstock_core.domain.request_lifecycle import ENDS, TABLE, Event, ImpossibleEvent, State, after, page

DOCS = Path(__file__).resolve().parents[2] / "docs" / "request-lifecycle.md"
PAIRS = list(product(State, Event))


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=[f"{s}-{e}" for s, e in PAIRS])
def test_every_pair_is_in_the_table_or_impossible(state: State, event: Event) -> None:
    if (state, event) in TABLE:
        assert after(state, event) is TABLE[state, event]
        return
    with pytest.raises(ImpossibleEvent) as impossible:
        after(state, event)
    assert (impossible.value.state, impossible.value.event) == (state, event)


def test_an_ended_request_ignores_a_late_cancel_and_refuses_all_else() -> None:
    for state in ENDS:
        assert after(state, Event.CANCELLED) is state
        assert [event for event in Event if (state, event) in TABLE] == [Event.CANCELLED]


def test_every_live_request_can_be_cancelled_and_can_fail() -> None:
    for state in set(State) - ENDS:
        assert after(state, Event.CANCELLED) is State.CANCELLED
        assert after(state, Event.INTERNAL_ERROR) is State.FAILED


def test_every_state_is_reached_and_every_live_one_reaches_an_end() -> None:
    reached = {State.DECIDING}
    while grown := {TABLE[s, e] for s, e in TABLE if s in reached} - reached:
        reached |= grown
    assert reached == set(State)
    for state in set(State) - ENDS:
        assert any(TABLE[s, e] in ENDS for s, e in TABLE if s is state)


def test_no_output_before_the_verdict() -> None:
    assert {state for state, event in TABLE if event is Event.OUTPUT} == {State.WAITING, State.STREAMING}
    assert [state for state, event in TABLE if event is Event.ACCEPTED] == [State.DECIDING]


def test_the_message_is_a_sentence() -> None:
    with pytest.raises(
        ImpossibleEvent, match="event 'output' is impossible for a request in state 'finished'"
    ):
        after(State.FINISHED, Event.OUTPUT)


def test_the_page_in_the_docs_is_fresh() -> None:
    assert DOCS.read_text() == page(), (
        "write it again: .venv/bin/python -c 'from penstock_core.domain.request_lifecycle import page; "
        'print(page(), end="")\' > docs/request-lifecycle.md'
    )
