"""Sessions in a closed loop: a turn arrives after the last answer and its think time."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from penstock_core.domain.slo import Slo, Tier
from penstock_core.timing.builtin_models import time_model
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import (
    Arrival,
    FirstVerdict,
    Fleet,
    LengthKnowledge,
    SimulatedOutcome,
    simulate,
)

TIERS = {"agent": Tier("agent", Slo(ttft_slowdown=5, tpot_s=0.1))}
FLEET = Fleet(
    "slos-serve",
    time_model("llama-3-8b-a100"),
    200_000,
    TIERS,
    "agent",
    truth=TruthKind.EXACT,
    lengths=LengthKnowledge.KNOWN,
    prefix_caching=True,
)
THINK_S = (0.0, 3.0, 0.0, 1.5)


def session(name: str, start_s: float, *, prompt_tokens: int = 600) -> Iterator[Arrival]:
    for stage, think_s in enumerate(THINK_S):
        ids = range(10 * stage)
        yield Arrival(
            f"{name}.{stage}",
            start_s,
            "agent",
            prompt_tokens * (stage + 1),
            30,
            session=name,
            stage=stage,
            think_s=think_s,
            hash_ids=[hash((name, one)) for one in ids],
            hash_id_tokens=64,
        )


def served(fleet: Fleet, *arrivals: Arrival) -> list[SimulatedOutcome]:
    return sorted(simulate(fleet, arrivals, 0), key=lambda outcome: outcome.arrival_s)


def end_s(outcome: SimulatedOutcome) -> float:
    assert outcome.e2e_s is not None
    return outcome.arrival_s + outcome.e2e_s


def test_a_turn_arrives_after_the_answer_and_its_think_time() -> None:
    outcomes = served(FLEET, *session("a", 2.0))
    assert [outcome.stage for outcome in outcomes] == [0, 1, 2, 3]
    assert outcomes[0].arrival_s == 2.0
    for before, after, think_s in zip(outcomes, outcomes[1:], THINK_S[1:], strict=False):
        assert after.arrival_s == pytest.approx(end_s(before) + think_s)


def test_turns_that_are_too_long_fail_one_after_the_other() -> None:
    turns = [
        Arrival(f"{stage}", 1.0, "agent", 300_000 if stage < 2000 else 10, 5, 0, "a", stage, think_s)
        for stage, think_s in enumerate([None, *[0.0] * 1999, 2.5])
    ]
    outcomes = served(FLEET, *turns)
    assert [outcome.verdict is FirstVerdict.FAILED for outcome in outcomes] == [True] * 2000 + [False]
    assert outcomes[-1].arrival_s == 3.5


def test_sessions_do_not_wait_for_one_another() -> None:
    outcomes = served(FLEET, *session("a", 0.0), *session("b", 0.1))
    assert [outcome.id for outcome in outcomes[:2]] == ["a.0", "b.0"]
    assert all(outcome.met for outcome in outcomes)


def test_each_turn_has_its_own_slo() -> None:
    """The first turn's SLO cannot be met, so it is served best effort; the next ones are admitted."""
    strict = {"strict": Tier("strict", Slo(ttft_s=1e-4)), **TIERS}
    first, *others = session("a", 0.0)
    outcomes = served(replace(FLEET, tiers=strict), first._replace(tier="strict"), *others)
    verdicts = [outcome.verdict for outcome in outcomes]
    assert verdicts == [FirstVerdict.BEST_EFFORT] + [FirstVerdict.ADMITTED] * 3


def test_a_turn_that_fails_is_followed_by_the_next() -> None:
    first, *others = session("a", 0.0)
    outcomes = served(FLEET, first._replace(prompt_tokens=300_000), *others)
    assert [outcome.verdict for outcome in outcomes] == [FirstVerdict.FAILED] + [FirstVerdict.ADMITTED] * 3


def test_a_closed_loop_slows_down_with_its_answers() -> None:
    """With half the speed the last turn comes later by what the answers before it took longer."""
    slow = replace(FLEET.model, scale=2.0)
    fast_s, slow_s = (
        served(replace(FLEET, model=model), *session("a", 0.0))[-1].arrival_s for model in (FLEET.model, slow)
    )
    answers_s = fast_s - sum(THINK_S)
    assert slow_s == pytest.approx(sum(THINK_S) + 2 * answers_s, abs=0.01)  # hops are not slower
