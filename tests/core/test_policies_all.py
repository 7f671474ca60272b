"""Requirements of every policy: possible steps, no forgotten request, decisions independent of the unit
of time. Each new name in `POLICIES` is tested here automatically."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.policy import Policy, Step
from penstock_core.domain.replica_view import Limits
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Judge, Targets
from penstock_core.domain.verdict import Rejected
from penstock_core.policies import POLICIES, build
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork, TimeModel, chunk_work
from penstock_simulator.engine.engine_state import EngineState

from examples import examples

MODEL = time_model("llama-3-8b-a100")
MOST_STEPS = 5_000


@dataclass(frozen=True)
class Scene:
    """A small engine, and requests that come at it faster than it can serve them."""

    jobs: tuple[Job, ...]
    answers: Mapping[str, int]
    kv_tokens: int
    limits: Limits
    model: TimeModel = MODEL
    speculation: Speculation | None = None

    def engine(self) -> EngineState:
        drafted = Random(len(self.jobs))
        return EngineState(self.kv_tokens, self.limits, accept=lambda drafts: drafted.randint(0, drafts))


def scene(random: Random, requests: int, drafts: int) -> Scene:
    """Tight and loose tiers of every kind, offline work, wrong lengths, prompts longer than any batch."""
    jobs, at_s = [], 0.0
    for i in range(requests):
        at_s += random.choice((0.0, random.expovariate(20.0)))
        targets = random.choice(
            (
                Targets(
                    random.uniform(0.1, 2.0),
                    random.choice((0.02, 0.05, 0.1)),
                    None,
                    random.choice(list(Judge)),
                ),
                Targets(e2e_s=random.uniform(1.0, 10.0)),
                Targets(),
            )
        )
        prompt, limit = random.randint(1, random.choice((60, 900))), random.randint(1, 60)
        request = Request(
            f"{i:03d}", random.choice("ab"), at_s, prompt, limit, targets, random.choice((1.0, 3.0))
        )
        jobs.append(new_job(request, random.randint(1, limit), best_effort=random.random() < 0.2))
    return Scene(
        tuple(jobs),
        {job.request.id: random.randint(1, job.request.max_output_tokens) for job in jobs},
        kv_tokens=random.choice((1024, 2048, 8192)),
        limits=Limits(random.choice((64, 256, 2048)), random.choice((4, 16, 64))),
        speculation=Speculation(drafts, 0.7) if drafts else None,
    )


def run(policy: Policy[Any], scene: Scene) -> Iterator[tuple[Step, EngineState, float]]:
    """Serve it all: every step as the engine is about to take it, which refuses what no engine can do."""
    engine, memory, now_s = scene.engine(), policy.start(), 0.0
    coming = list(reversed(scene.jobs))
    for _ in range(MOST_STEPS):
        if not engine.running and not engine.waiting:
            if not coming:
                return
            now_s = max(now_s, coming[-1].request.arrival_s)
        while coming and coming[-1].request.arrival_s <= now_s:
            view = engine.view(now_s, now_s, scene.model, scene.speculation)
            job = coming.pop()
            if not isinstance(policy.admit(view, [job])[0], Rejected):
                engine.add(job, scene.answers[job.request.id])
        step, memory = policy.step(engine.view(now_s, now_s, scene.model, scene.speculation), memory)
        yield step, engine, now_s
        engine.start(step)
        now_s += step.duration_s or scene.model.seconds(BatchWork(1))  # an idle engine is asked again soon
        engine.finish(now_s)
    left = [job.request.id for job in (*engine.running, *engine.waiting)]
    pytest.fail(f"{left} are not done after {MOST_STEPS} steps")


SCENES = st.builds(
    scene, st.integers(0, 10_000).map(Random), requests=st.integers(1, 40), drafts=st.sampled_from((0, 3))
)
EVERY_POLICY = pytest.mark.parametrize("name", POLICIES)


@EVERY_POLICY
@examples(15)
@given(scene=SCENES)
def test_steps_are_possible_and_all_requests_finish(name: str, scene: Scene) -> None:
    for step, engine, _ in run(build(name), scene):
        assert newcomers_blocks(step, engine) <= free_blocks(step, engine)
        assert sum(step.tokens.values()) + sum(step.drafts.values()) <= scene.limits.batch_tokens
        assert step.duration_s == pytest.approx(scene.model.seconds(work_of(step, engine)))


def newcomers_blocks(step: Step, engine: EngineState) -> int:
    """Blocks that a step's new jobs need."""
    started = [job for job in engine.waiting if job.request.id in step.tokens]
    return sum(-(-step.tokens[job.request.id] // engine.block_tokens) for job in started)


def free_blocks(step: Step, engine: EngineState) -> int:
    """Blocks that are free once a step has preempted."""
    given_up = [job for job in engine.running if job.request.id in step.preempt]
    return engine.free_blocks + sum(1 + -(-job.computed_tokens // engine.block_tokens) for job in given_up)


def work_of(step: Step, engine: EngineState) -> BatchWork:
    """Return the work of a step."""
    context, attention = 0, 0.0
    for job in (*engine.running, *engine.waiting):
        tokens = step.tokens.get(job.request.id, 0)
        if tokens and job.decoding:
            context += job.computed_tokens + 1
        elif tokens:
            attention += chunk_work(tokens, job.computed_tokens)
    tokens = sum(step.tokens.values()) + sum(step.drafts.values())
    return BatchWork(tokens, context, attention, max(step.drafts.values(), default=0))


@EVERY_POLICY
@pytest.mark.parametrize("drafts", (0, 3))
def test_a_slower_clock_changes_no_decision(name: str, drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time and rates scaled together: an engine four times slower, deadlines and arrivals four times later.

    What a policy counts in seconds has its unit in its name, a field's or a constant's, and is scaled too.
    """
    scenes = [scene(Random(seed), 40, drafts) for seed in range(3)]
    steps = [[decided(step) for step, *_ in run(build(name), here)] for here in scenes]
    slow_constants(monkeypatch, 4.0)
    for here, expected in zip(scenes, steps, strict=True):
        later = run(slowed(build(name), 4.0), slowed(here, 4.0))
        assert [decided(step) for step, *_ in later] == expected


def slow_constants(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    modules = [module for name, module in sys.modules.items() if name.startswith("penstock_core.")]
    for module in modules:
        for name, value in vars(module).copy().items():
            if name.endswith("_S") and isinstance(value, float):
                monkeypatch.setattr(module, name, value * factor)


def decided(step: Step) -> tuple[object, ...]:
    return list(step.tokens.items()), step.preempt, list(step.drafts.items()), step.promote


def slowed(value: Any, factor: float) -> Any:
    """Return the value with all its durations and times scaled, as found by the units of their names."""
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: _part(f.name, getattr(value, f.name), factor) for f in fields(value) if f.init}
        )
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(
            *(_part(name, part, factor) for name, part in zip(value._fields, value, strict=True))
        )
    if isinstance(value, tuple):
        return tuple(slowed(part, factor) for part in value)
    return value


def _part(name: str, part: Any, factor: float) -> Any:
    if isinstance(part, float) and name.endswith("_s"):
        return part * factor
    return slowed(part, factor)
