from itertools import product
from pathlib import Path

import pytest
from penstock_core.domain.request_lifecycle import ENDS, TABLE, Do, Event, ImpossibleEvent, State, after, page

DOCS = Path(__file__).resolve().parents[2] / "docs" / "request-lifecycle.md"
PAIRS = list(product(State, Event))


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=[f"{s}-{e}" for s, e in PAIRS])
def test_every_pair_is_in_the_table_or_impossible(state: State, event: Event) -> None:
    if (state, event) in TABLE:
        assert after(state, event) == TABLE[state, event]
        return
    with pytest.raises(ImpossibleEvent) as impossible:
        after(state, event)
    assert (impossible.value.state, impossible.value.event) == (state, event)


def test_an_ended_request_ignores_a_late_cancel_and_refuses_all_else() -> None:
    for state in ENDS:
        assert after(state, Event.CANCELLED) == (state, Do.NOTHING)
        assert [event for event in Event if (state, event) in TABLE] == [Event.CANCELLED]


def test_every_live_request_can_be_cancelled_and_can_fail() -> None:
    for state in set(State) - ENDS:
        assert after(state, Event.CANCELLED)[0] is State.CANCELLED
        assert after(state, Event.INTERNAL_ERROR) == (State.FAILED, Do.ANSWER_FAILED)


def test_every_state_is_reached_and_every_live_one_reaches_an_end() -> None:
    reached = {State.DECIDING}
    while grown := {TABLE[s, e][0] for s, e in TABLE if s in reached} - reached:
        reached |= grown
    assert reached == set(State)
    for state in set(State) - ENDS:
        assert any(TABLE[s, e][0] in ENDS for s, e in TABLE if s is state)


def test_no_output_and_no_work_for_the_engine_before_the_verdict() -> None:
    done = {TABLE[s, e][1] for s, e in TABLE if s is State.DECIDING}
    assert Do.PASS_ON not in done and Do.ABORT not in done
    assert [pair for pair, (_, do) in TABLE.items() if do is Do.SEND] == [(State.DECIDING, Event.ACCEPTED)]


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
