"""The latest end of each turn of a session that keeps to its SLOs."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from penstock_cli.capacity.session_schedule import is_behind, latest_ends_s
from penstock_cli.capacity.trial import Trial, run_trial
from penstock_core.domain.slo import Slo, Tier
from penstock_core.timing.builtin_models import time_model
from penstock_simulator.arrival import Arrival
from penstock_simulator.simulation import FirstVerdict, SimulatedOutcome

CHAT = Slo(ttft_s=2.0, tpot_s=0.1)
MODEL = time_model("opt-13b-a100")


def turn(session: str, stage: int, think_s: float | None = 0.0, **more: Any) -> Arrival:
    """A turn of a session that starts at 100 s, with an answer of 11 tokens."""
    return Arrival(
        f"{session}.{stage}", 100.0, "chat", 50, 11, session=session, stage=stage, think_s=think_s, **more
    )


def ends_s(*turns: Arrival, slo: Slo = CHAT) -> Sequence[float]:
    """The latest ends of these turns, after the start."""
    latest_s = latest_ends_s(turns, {"chat": Tier("chat", slo)}, "chat", MODEL)
    return [latest_s[turn.id] - 100.0 for turn in turns if turn.id in latest_s]


def ended(arrival_s: float, e2e_s: float | None) -> SimulatedOutcome:
    """The outcome of a turn."""
    return SimulatedOutcome(
        "a.0", "chat", arrival_s, 50, 11, FirstVerdict.ADMITTED, "r0", 1, 1.0, 0.1, e2e_s, met=True
    )


def test_a_turn_may_end_when_all_before_it_took_as_long_as_allowed() -> None:
    """2 s until the first token and 0.1 s for each of the ten others."""
    found = ends_s(turn("a", 0), turn("b", 0, 7.0), turn("a", 1, 4.0), turn("b", 1), turn("a", 2))
    assert found == pytest.approx([3.0, 10.0, 10.0, 13.0, 13.0])


def test_other_requests_have_no_such_end() -> None:
    assert not ends_s(turn("a", 0, None), turn("", 0, None))


@pytest.mark.parametrize(
    ("slo", "allowed_s"),
    [
        (replace(CHAT, ttft_slowdown=5.0), 5 * MODEL.prefill_seconds(50) + 1.0),
        (replace(CHAT, e2e_s=2.5), 2.5),
        (Slo(e2e_s=2.5), 2.5),
        (Slo(ttft_s=2.0), inf),
        (Slo(tpot_s=0.1), inf),
        (replace(CHAT, answer_tpot_s=0.2), 2.0 + 3 * 0.1 + 7 * 0.2),
    ],
)
def test_the_longest_time_within_an_slo(slo: Slo, allowed_s: float) -> None:
    assert ends_s(turn("a", 0, thinking_tokens=4), slo=slo) == pytest.approx([allowed_s])


def test_an_answer_without_thinking_has_the_answers_target_after_its_first_token() -> None:
    assert ends_s(turn("a", 0), slo=replace(CHAT, answer_tpot_s=0.2)) == pytest.approx([4.0])


@pytest.mark.parametrize(("e2e_s", "behind"), [(3.0, False), (3.1, True), (None, False)])
def test_a_turn_that_ends_after_its_time_is_behind(e2e_s: float | None, behind: bool) -> None:
    assert is_behind(ended(107.0, e2e_s), {"a.0": 110.0}) is behind
    assert not is_behind(ended(107.0, e2e_s), {})


def test_turns_of_a_session_that_is_behind_count_as_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn is in time for itself, and one that others delay counts."""
    trial = Trial("swe", "slos-serve", 2048, 0, 1, "prefix", "known", "exact", 0.1, 0, 10**9, sessions=1)
    on_time = run_trial(trial)
    assert on_time.missed == 0
    monkeypatch.setattr("penstock_cli.capacity.session_schedule._allowed_s", lambda *_: 0.0)
    assert run_trial(trial).missed == on_time.requests
