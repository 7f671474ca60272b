"""Scenarios of recorded sessions: what prompts share, when turns come, and that samples repeat."""

from collections import defaultdict
from collections.abc import Iterable

import pytest
from penstock_simulator.arrival import Arrival
from penstock_simulator.scenarios import SCENARIOS, arrivals, scenario
from penstock_simulator.scenarios.session_recording import session_recording

SESSIONS = [name for name, here in SCENARIOS.items() if here.sessions is not None]

RECORDED = {
    "agents": (242, 9145, 604_589_478, 3_856_104),
    "swe": (20, 402, 2_469_470, 43_917),
    "web": (25, 693, 1_458_230, 429_966),
    "rag-chat": (3993, 3993, 61_194_628, 595_432),
}
"""Sessions, requests, tokens of prompts and of answers."""

REPEATED = {"agents": 0.95, "swe": 0.93, "web": 0.84, "rag-chat": 0.65}
"""Share of prompt tokens that an unbounded cache would have, by the data's own description."""


def test_all_four_session_scenarios_exist() -> None:
    assert set(SESSIONS) == set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_a_session_recording_has_the_recorded_totals(name: str) -> None:
    sessions = session_recording(name)
    turns = [turn for session in sessions for turn in session]
    prompts, answers = (sum(tokens) for tokens in zip(*(turn[1:3] for turn in turns), strict=True))
    assert (len(sessions), len(turns), prompts, answers) == RECORDED[name]
    assert all(session[0].think_s == 0 for session in sessions)


@pytest.mark.parametrize("name", ["swe", "web", "rag-chat"])
def test_prompts_share_the_recordings_prefixes(name: str) -> None:
    here = scenario(name).sessions
    assert here is not None
    recorded = len(session_recording(name))
    laps = -(-recorded // here.count)
    made = [arrival for arrival in here.arrivals(1.0, 0, laps) if arrival.salt == "0"]
    assert repeated_share(made) == pytest.approx(REPEATED[name], abs=0.01)


def repeated_share(made: Iterable[Arrival]) -> float:
    seen, prompt_tokens, repeated_tokens = set[int](), 0, 0
    for arrival in made:
        known = next((n for n, one in enumerate(arrival.hash_ids) if one not in seen), len(arrival.hash_ids))
        seen.update(arrival.hash_ids)
        prompt_tokens += arrival.prompt_tokens
        repeated_tokens += min(known * arrival.hash_id_tokens, arrival.prompt_tokens)
    return repeated_tokens / prompt_tokens


@pytest.mark.parametrize("name", SESSIONS)
def test_turns_have_their_sessions_start_and_index(name: str) -> None:
    turns = defaultdict[str, list[Arrival]](list)
    made = list(arrivals(scenario(name), 2.0, seed=1))
    for arrival in made:
        turns[arrival.session].append(arrival)
    assert [arrival.arrival_s for arrival in made] == sorted(arrival.arrival_s for arrival in made)
    for session in turns.values():
        assert len({arrival.arrival_s for arrival in session}) == 1
        assert [arrival.stage for arrival in session] == list(range(len(session)))
        assert all(arrival.think_s is not None and arrival.think_s >= 0 for arrival in session)


@pytest.mark.parametrize("name", SESSIONS)
def test_the_rate_counts_requests(name: str) -> None:
    slow, fast = (list(arrivals(scenario(name), rate_rps, seed=2, laps=2)) for rate_rps in (0.5, 5.0))
    assert len(slow) == len(fast)
    assert slow[-1].arrival_s <= len(slow) / 0.5
    assert [a.arrival_s for a in slow] == pytest.approx([10 * a.arrival_s for a in fast])


@pytest.mark.parametrize("name", SESSIONS)
def test_samples_start_at_different_sessions(name: str) -> None:
    firsts = {tuple(next(arrivals(scenario(name), 1.0, seed)).hash_ids) for seed in range(3)}
    assert len(firsts) > 1


def test_a_repeated_session_shares_no_prefix_with_the_first() -> None:
    made = list(arrivals(scenario("swe"), 1.0, seed=0, laps=2))
    salts = [a.salt for a in made if a.stage == 0 and a.hash_ids == made[0].hash_ids]
    assert len(salts) == len(set(salts)) == 10
