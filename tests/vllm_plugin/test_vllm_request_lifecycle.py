"""For any arrivals, cancels and failures every request ends, every block is freed, and both ledgers agree."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.policies import POLICIES
from penstock_core.timing.time_model import Term, TimeModel, to_json
from penstock_vllm.faults import Fault
from virtual.engine import Engine, Kind
from virtual.grammar import Anything
from virtual.life import TIERS, Recorder, everybody, watched

from examples import examples

SMALL = Kind(blocks=40, batch_tokens=64, running=6)

KINDS = st.builds(
    lambda policy, drafts, ahead, caching, loras: replace(
        SMALL, policy=policy, drafts=drafts, ahead=ahead, prefix_caching=caching, loras=loras
    ),
    st.sampled_from(sorted(POLICIES)),
    st.sampled_from([0, 0, 3]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 0, 1, 2]),
)

EVENTS = st.one_of(
    st.tuples(st.just("come"), st.integers(1, 400), st.integers(1, 200), st.integers(0, len(TIERS))),
    st.tuples(st.just("come with a grammar"), st.integers(1, 100), st.integers(1, 50)),
    st.tuples(st.just("a grammar is there"), st.booleans()),
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.tuples(st.just("steps"), st.integers(1, 12)),
    st.tuples(st.just("policy raises"), st.integers(1, 4)),
    st.tuples(st.just("policy asks the impossible"), st.integers(1, 4)),
    st.tuples(st.just("policy asks too much"), st.integers(1, 30)),
    st.tuples(st.just("all lose their KV")),
    st.tuples(st.just("code of ours raises")),
)


ANSWERS: dict[str, Callable[[ReplicaView], Step]] = {
    "policy asks the impossible": lambda view: Step({"nobody": 1}),
    "policy asks too much": everybody,
}


class Broken(Exception):
    """The error of a faulty policy."""


class World:
    """An engine with its requests and its policy's faults."""

    def __init__(self, kind: Kind) -> None:
        self.engine, self.policy = watched(kind)
        self.number = 0
        self.grammars: list[Future[Any]] = []

    def happens(self, event: tuple[Any, ...]) -> None:
        what, *how = event
        if what == "come":
            self.arrives(*how)
        elif what == "come with a grammar":
            self.grammars.append(Future())
            self.arrives(how[0], how[1], len(TIERS), self.grammars[-1])
        elif what == "a grammar is there":
            self.compile(how[0])
        elif what == "leave":
            here = list(self.engine.scheduler.requests)
            self.engine.abort(here[how[0] : how[0] + 1])
        elif what == "steps":
            self.steps(how[0])
        elif what == "all lose their KV":
            self.engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        elif what == "code of ours raises":
            self.engine.scheduler._contain(Broken("as it happens"))
            self.steps(1)  # records all requests again
        else:
            self.policy.fault = _raise if what == "policy raises" else None
            self.policy.answer = ANSWERS.get(what)
            self.steps(how[0])
            self.policy.fault = self.policy.answer = None

    def arrives(
        self, prompt_tokens: int, output_tokens: int, tier: int, grammar: "Future[Any] | None" = None
    ) -> None:
        self.number += 1
        fields = {**TIERS[tier], "penstock_id": f"p{self.number}"} if tier < len(TIERS) else None
        lora = self.number % (self.engine.kind.loras + 2) if self.engine.kind.loras else 0
        self.engine.add(
            f"r{self.number}", prompt_tokens, output_tokens, fields=fields, grammar=grammar, lora=lora
        )

    def compile(self, well: bool) -> None:
        """The oldest grammar that is awaited is there, or cannot be."""
        if not self.grammars:
            return
        if well:
            self.grammars.pop(0).set_result(Anything())
        else:
            self.grammars.pop(0).set_exception(ValueError("no grammar"))

    def steps(self, count: int) -> None:
        for _ in range(count):
            if self.engine.scheduler.has_requests():
                self.engine.step()
            elif self.engine.under_way:
                self.engine.end()
            agree(self.engine)


def _raise() -> None:
    raise Broken("as it happens")


def agree(engine: Engine) -> None:
    """vLLM's lists and ours hold the same requests, and all blocks are accounted for."""
    scheduler, ledger = engine.scheduler, engine.scheduler.ledger
    running = [request.request_id for request in scheduler.running]
    waiting = {request.request_id for request in scheduler.waiting}
    assert {name for name, held in ledger.by_id.items() if held.running} == set(running)
    assert {held.request.request_id for held in ledger.waiting} == waiting
    assert set(ledger.by_id) == set(scheduler.requests) == set(running) | waiting
    assert len(set(running)) == len(running) and not set(running) & waiting
    manager = scheduler.kv_cache_manager
    held = {block for name in running for block in manager.get_block_ids(name)[0]}
    assert len(held) + engine.free_blocks == engine.kind.blocks


@examples(120)
@given(KINDS, st.lists(EVENTS, max_size=40))
def test_no_sequence_of_events_loses_a_request_or_leaks_a_block(kind: Kind, events: list[Any]) -> None:
    world = World(kind)
    for event in events:
        world.happens(event)
        agree(world.engine)
    while world.grammars:
        world.compile(well=True)
    world.engine.drain()
    agree(world.engine)
    engine = world.engine
    assert engine.finished | engine.stopped == set(engine.asked)
    assert engine.free_blocks == engine.kind.blocks
    assert not engine.scheduler.ledger.by_id and not engine.scheduler.ledger.blocked


def test_a_policy_that_raises_loses_only_its_plan(caplog: pytest.LogCaptureFixture) -> None:
    world = World(replace(SMALL, blocks=400, policy="vllm"))
    for _ in range(5):
        world.arrives(100, 20, 0)
    world.policy.fault = _raise
    with caplog.at_level("ERROR", logger="vllm.penstock"):
        world.engine.drain()
    assert world.engine.finished == set(world.engine.asked)
    assert world.engine.scheduler.faults.counted[Fault.RAISED] > 10
    assert len([record for record in caplog.records if "vLLM plans instead" in record.message]) == 1


def test_steps_without_a_plan_are_vllms_own() -> None:
    """Request for request and token for token."""
    kind = replace(SMALL, policy="slos-serve", drafts=3)
    faulty, policy = watched(kind)
    policy.fault = _raise
    own = Engine(replace(kind, steered=False))
    for engine in (faulty, own):
        for number in range(12):
            engine.add(f"r{number}", 30 + 7 * number, 10 + number, fields=TIERS[number % len(TIERS)])
    while own.scheduler.has_requests():
        ours, theirs = faulty.step(), own.step()
        assert list(ours.num_scheduled_tokens.items()) == list(theirs.num_scheduled_tokens.items())
        assert ours.scheduled_spec_decode_tokens == theirs.scheduled_spec_decode_tokens
        assert ours.preempted_req_ids == theirs.preempted_req_ids
    assert faulty.finished == own.finished == set(own.asked)


def test_a_slow_policy_is_skipped_until_its_excess_time_has_passed() -> None:
    engine, policy = watched(replace(SMALL, blocks=400, policy="vllm", more={"planningS": 0.01}))
    ticks = iter([0.0, 0.155] + [1.0] * 1000)  # ten steps' time is tolerated
    engine.scheduler.policy_calls._clock = lambda: next(ticks)
    for number in range(3):
        engine.add(f"r{number}", 50, 30)
    for _ in range(15):
        engine.step()
    assert engine.scheduler.faults.counted == {Fault.TOO_SLOW: 1}
    assert policy.asked == 1
    engine.step()
    assert policy.asked == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_waiting_for_an_adapter_slot_delays_no_other(policy: str) -> None:
    """Not even where prompts go before decodes: the adapter in use is free only once those have ended."""
    engine = Engine(replace(SMALL, policy=policy, loras=1))
    for number in range(4):
        engine.add(f"r{number}", 30, 20, fields=TIERS[0], lora=1 + number % 2)
    engine.drain(500)
    assert engine.finished == set(engine.asked)


def test_a_preempted_best_effort_request_keeps_its_generated_tokens() -> None:
    """Its KV is computed again as one prefill over prompt and answer; no token comes twice."""
    engine, policy = watched(Kind(policy="slos-serve", blocks=12, batch_tokens=256, running=8))
    offline = engine.add("offline", 60, 100, fields={"penstock_best_effort": 1})
    for _ in range(31):
        engine.step()
    generated = list(offline.output_token_ids)
    assert len(generated) > 20
    urgent = {
        "penstock_tier": "chat",
        "penstock_ttft_s": 0.5,
        "penstock_tpot_s": 0.1,
        "penstock_best_effort": 0,
    }
    engine.add("urgent", 100, 10, fields=urgent)
    while offline.num_preemptions == 0:
        engine.step()
    assert offline.num_computed_tokens == 0
    assert list(offline.output_token_ids)[: len(generated)] == generated
    resumed = None
    while resumed is None:
        resumed = engine.step().num_scheduled_tokens.get("offline")
    assert resumed == offline.num_prompt_tokens + len(offline.output_token_ids) - 1
    engine.drain()
    assert len(offline.output_token_ids) == 100
    assert isinstance(policy, Recorder)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_prompt_token_over_every_limit_does_not_stop_the_engine(ahead: bool) -> None:
    """Measured on a busy machine: decodes take a thousand times as long, and prompts seem to after them."""
    wrong = TimeModel("wrong", (Term(0.0, 1e-5),), prefill_work_s=1e-6)
    admitted = {"penstock_ttft_s": 60.0, "penstock_tpot_s": 5.0, "penstock_best_effort": 0}
    engine = Engine(Kind(ahead=ahead, more={"timeModel": to_json(wrong)}))
    for name in ("before", "after"):
        engine.add(name, 44, 160, fields=admitted)
        engine.drain(1000)
    assert engine.finished == {"before", "after"}
    assert not engine.scheduler.faults.counted
