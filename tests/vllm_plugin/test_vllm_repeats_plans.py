"""A repeated plan equals the plan that the policy would return in every step."""

from dataclasses import replace

import pytest
from penstock_core.policies import POLICIES
from virtual.engine import Engine, Kind
from virtual.life import Moment, life, watched

STEPS = 500

CALM = 0.02
"""So few arrive that most steps are the next token of every request."""

REPEATABLE = {"slos-serve", "vllm", "sarathi", "sjf", "fcfs", "orca", "vllm-legacy"}
"""Policies whose plans can be repeated."""

TINY = Kind(blocks=60, batch_tokens=128, running=16)
KINDS = {
    "ample": Kind(),
    "scarce": TINY,
    "ahead": Kind(ahead=True),
    "scarce and ahead": replace(TINY, ahead=True),
    "with a prefix cache": Kind(prefix_caching=True),
}


def admitted(engine: Engine) -> list[dict[str, object]]:
    """Requests that all have an SLO, with every kind of TPOT target."""
    judges = ("mean", "window", "max")
    return [
        {"penstock_id": f"p{at}", "penstock_ttft_s": 5.0, "penstock_tpot_s": 0.2, "penstock_best_effort": 0}
        | {"penstock_judge": judges[at % 3], "penstock_tier": "chat"}
        for at in range(9)
    ]


def assert_same(requested: Moment, going_on: Moment) -> None:
    one, other = requested.output, going_on.output
    assert list(one.num_scheduled_tokens.items()) == list(other.num_scheduled_tokens.items())
    assert one.preempted_req_ids == other.preempted_req_ids
    assert requested.engine.now_s == going_on.engine.now_s
    if going_on.wanted is not None:
        assert requested.view == going_on.view, "and whenever it is asked it sees the same"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_repeated_steps_equal_those_of_a_policy_called_every_time(policy: str, kind: str) -> None:
    engine_kind, not_asked = replace(KINDS[kind], policy=policy), 0
    lives = (life(engine_kind, seed=3, steps=STEPS, rate=CALM, always=always) for always in (True, False))
    for requested, going_on in zip(*lives, strict=True):
        assert_same(requested, going_on)
        not_asked += requested.wanted is not None and going_on.wanted is None
    assert going_on.engine.scheduler.faults.counted == {}
    assert (not_asked > 0) == (policy in REPEATABLE)


@pytest.mark.parametrize("ahead", [False, True])
def test_while_all_requests_decode_the_policy_is_not_called(ahead: bool) -> None:
    engine, policy = watched(Kind(policy="slos-serve", ahead=ahead))
    for at, fields in enumerate(admitted(engine)):
        engine.add(f"r{at}", 50, 400, fields=fields)
    for _ in range(10):
        engine.step()
    requested = policy.asked
    for _ in range(200):
        assert len(engine.step().num_scheduled_tokens) == 9
    assert policy.asked == requested
    engine.add("new", 100, 5, fields={"penstock_id": "new", "penstock_ttft_s": 5.0})
    engine.step()
    assert policy.asked > requested
    engine.drain()
    assert engine.finished == set(engine.asked)


@pytest.mark.parametrize("ahead", [False, True])
def test_the_policy_is_called_again_before_blocks_run_out(ahead: bool) -> None:
    engine, policy = watched(Kind(policy="slos-serve", blocks=60, running=16, ahead=ahead))
    for at, fields in enumerate(admitted(engine)):
        engine.add(f"r{at}", 30, 200, fields=fields)
    for _ in range(2000):
        free, requested = engine.free_blocks, policy.asked
        running = len(engine.scheduler.running)
        if not engine.scheduler.has_requests():
            break
        engine.step()
        assert policy.asked > requested or free >= running or not engine.scheduler.running
    engine.drain()
    assert engine.finished == set(engine.asked)
