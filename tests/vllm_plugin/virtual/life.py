"""Random lives of an engine: requests of all lengths and tiers, clients that leave, memory ample or not."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from penstock_core.domain.policy import Policy, Step
from penstock_core.domain.replica_view import ReplicaView
from virtual.engine import Engine, Kind

TIERS: tuple[dict[str, Any], ...] = (
    {"penstock_tier": "chat", "penstock_ttft_s": 0.8, "penstock_tpot_s": 0.05, "penstock_best_effort": 0},
    {"penstock_tier": "coder", "penstock_ttft_s": 0.4, "penstock_tpot_s": 0.03, "penstock_judge": "window"},
    {"penstock_tier": "batch", "penstock_best_effort": 1},
    {"penstock_tier": "jobs", "penstock_e2e_s": 5.0, "penstock_best_effort": 0},
)


class Recorder:
    """A policy that records its last view and step.

    always: it wants to be asked for every step.
    fault: called before it is asked, to raise. answer: gives one instead of its own.
    """

    def __init__(self, policy: Policy[Any], *, always: bool) -> None:
        self._policy, self._always = policy, always
        self.asked = 0
        self.view: ReplicaView | None = None
        self.step_wanted = Step()
        self.fault: Callable[[], None] | None = None
        self.answer: Callable[[ReplicaView], Step] | None = None

    def start(self) -> Any:
        return self._policy.start()

    def admit(self, view: ReplicaView, new: Any) -> Any:
        return self._policy.admit(view, new)

    def step(self, view: ReplicaView, memory: Any) -> tuple[Step, Any]:
        if self.fault is not None:
            self.fault()
        self.asked += 1
        self.view = view
        wanted, memory = self._policy.step(view, memory)
        if self._always:
            wanted = replace(wanted, repeatable_blocks=None)
        self.step_wanted = self.answer(view) if self.answer is not None else wanted
        return self.step_wanted, memory


def everybody(view: ReplicaView) -> Step:
    """A token of every running request, whether there is memory for it or not."""
    return Step({job.request.id: 1 for job in view.running})


class Moment(NamedTuple):
    """A step of a life: the engine after it was planned, what the policy wanted of it, what vLLM made of it.

    view: what the policy saw. wanted: None where it was not asked.
    """

    engine: Engine
    view: ReplicaView | None
    wanted: Step | None
    output: Any


def watched(
    kind: Kind, accepted: Callable[[int], int] = lambda drafts: drafts // 2, *, always: bool = False
) -> tuple[Engine, Recorder]:
    """An engine whose policy is recorded. always: it is called for every step."""
    engine = Engine(kind, accepted)
    recorder = Recorder(engine.scheduler.policy_calls._policy, always=always)
    engine.scheduler.policy_calls._policy = recorder
    return engine, recorder


def life(kind: Kind, seed: int, steps: int, *, rate: float = 0.15, always: bool = False) -> Iterator[Moment]:
    """An engine's steps, one after the other, until all is done. always: its policy is asked for each."""
    chance = random.Random(seed)
    engine, recorder = watched(kind, lambda drafts: chance.randint(0, drafts), always=always)
    longest, number = min(kind.blocks, 300) * kind.block_tokens // 2, 0
    for _ in range(steps):
        while chance.random() < rate and len(engine.scheduler.requests) < 80:
            number += 1
            prompt_tokens = chance.randint(1, chance.choice([40, 300, longest]))
            output_tokens = chance.randint(1, chance.choice([5, 100, longest]))
            reported = {**chance.choice(TIERS), "penstock_id": f"p{number}", "penstock_spent_s": 0.01}
            reported["penstock_output_tokens"] = chance.randint(1, 2 * output_tokens)
            engine.add(f"r{number}", prompt_tokens, output_tokens, fields=reported)
        if engine.scheduler.requests and chance.random() < 0.02:
            engine.abort([chance.choice(list(engine.scheduler.requests))])
        requested = recorder.asked
        output = engine.begin()
        yield Moment(
            engine, recorder.view, recorder.step_wanted if recorder.asked > requested else None, output
        )
        if engine.scheduler.requests and chance.random() < 0.02:
            engine.abort([chance.choice(list(engine.scheduler.requests))])
        engine.end_due(output)
    assert number > steps * rate / 3
