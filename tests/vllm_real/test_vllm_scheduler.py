"""The policy `vllm` beside vLLM's own scheduler, on one engine that does what vLLM says.

Random lives of an engine: requests of all lengths, often several at once, clients that leave between steps
and in the middle of them, memory that is ample or scarce. Both policies see the same picture before every
step.
"""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.policies.vllm import Vllm
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_simulator.engine.drafter import Drafter
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.policies import VLLM_REAL, build
from penstock_simulator.real_vllm.live_scheduler import SchedulersDiverged
from penstock_simulator.real_vllm.policy import NoPromptContent

MODEL = time_model("llama-3-8b-a100")
ACCEPTANCE = 0.7
STEPS = 800
BLOCK_TOKENS = 16


class Moment(NamedTuple):
    """Before a step: the picture, what each wants, and the free blocks of both once it has begun."""

    view: ReplicaView
    vllm: Step
    vllm_real: Step
    free_blocks: int
    vllm_real_free_blocks: int


class Engine(NamedTuple):
    """blocks: of its KV cache. drafts: tokens drafted for a decode in every step."""

    blocks: int
    batch_tokens: int
    running: int
    drafts: int = 0


SCARCE = (Engine(60, 512, 64), Engine(60, 128, 16), Engine(200, 512, 16), Engine(200, 32, 32))
AMPLE_BLOCKS = 50_000


def job(number: int, prompt_tokens: int, output_tokens: int, now_s: float = 0.0) -> Job:
    request = Request(f"q{number}", "chat", now_s, prompt_tokens, output_tokens)
    return new_job(request, output_tokens, best_effort=False)


def life(kind: Engine, seed: int, shortest_prompt: int = 1) -> Iterator[Moment]:
    """An engine's steps, one after the other, as vLLM wants them."""
    chance = random.Random(seed)
    engine = EngineState(
        kind.blocks * BLOCK_TOKENS,
        Limits(kind.batch_tokens, kind.running),
        BLOCK_TOKENS,
        Drafter(ACCEPTANCE, seed).accepted,
    )
    drafter = Speculation(kind.drafts, ACCEPTANCE) if kind.drafts else None
    vllm, vllm_real = Vllm(), build(VLLM_REAL)
    memory: Any = vllm_real.start()
    longest, number = min(kind.blocks, 600) * BLOCK_TOKENS // 2, 0
    for step_number in range(STEPS):
        now_s = 0.01 * step_number
        while chance.random() < 0.15 and engine.waiting_count < 50:
            number += 1
            prompt_tokens = chance.randint(shortest_prompt, chance.choice([40, 300, longest]))
            output_tokens = chance.randint(1, chance.choice([5, 100, longest]))
            engine.add(job(number, prompt_tokens, output_tokens, now_s), output_tokens)
        leave(engine, chance)
        view = engine.view(now_s, now_s, MODEL, drafter)
        theirs, memory = vllm_real.step(view, memory)
        ours, _ = vllm.step(view, None)
        engine.start(theirs)
        pool = memory.scheduler.kv_cache_manager.block_pool
        yield Moment(view, ours, theirs, engine.free_blocks, pool.get_num_free_blocks())
        leave(engine, chance)
        engine.finish(now_s + 0.01)
    assert number > STEPS / 10


def leave(engine: EngineState, chance: random.Random) -> None:
    """Sometimes a client disconnects."""
    here = (*engine.running, *engine.waiting)
    if here and chance.random() < 0.02:
        engine.abort(chance.choice(here).request.id)


def wanted(step: Step) -> tuple[list[tuple[str, int]], tuple[str, ...], dict[str, int]]:
    """The step, with the order of its batch."""
    return list(step.tokens.items()), step.preempt, {name: n for name, n in step.drafts.items() if n}


@pytest.mark.parametrize("kind", SCARCE, ids=str)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_step_and_its_memory_equal_vllms(kind: Engine, seed: int) -> None:
    preempted = 0
    for moment in life(kind, seed):
        assert wanted(moment.vllm) == wanted(moment.vllm_real)
        assert moment.vllm.duration_s == pytest.approx(moment.vllm_real.duration_s)
        assert moment.free_blocks == moment.vllm_real_free_blocks
        preempted += len(moment.vllm_real.preempt)
    assert preempted > 0 or kind.blocks > 60


def test_with_drafts_every_step_equals_vllms_while_memory_suffices() -> None:
    drafted = 0
    for moment in life(Engine(AMPLE_BLOCKS, 256, 32, drafts=4), seed=3, shortest_prompt=2):
        assert wanted(moment.vllm) == wanted(moment.vllm_real)
        drafted += sum(moment.vllm_real.drafts.values())
    assert drafted > STEPS


@pytest.mark.parametrize("kind", SCARCE[:3], ids=str)
def test_with_drafts_in_scarce_memory_few_steps_differ(kind: Engine) -> None:
    """vLLM preempts others for drafts, and reserves for drafts past an answer's end."""
    moments = list(life(kind._replace(drafts=4), seed=4, shortest_prompt=2))
    assert all(moment.vllm_real_free_blocks <= moment.free_blocks for moment in moments)
    differ = sum(wanted(moment.vllm) != wanted(moment.vllm_real) for moment in moments)
    assert differ <= 0.1 * len(moments)


def test_a_prompt_of_one_token_starts_without_the_drafts_that_vllm_pads_it_with() -> None:
    engine = EngineState(4096, Limits(64, 8), BLOCK_TOKENS, Drafter(ACCEPTANCE, 0).accepted)
    policy = build(VLLM_REAL)
    memory: Any = policy.start()
    engine.add(job(1, 40, 20), 20)
    for now_s in (0.0, 0.1):
        view = engine.view(now_s, now_s, MODEL, Speculation(4, ACCEPTANCE))
        step, memory = policy.step(view, memory)
        engine.apply(step, now_s)
        if now_s == 0.0:
            engine.add(job(2, 1, 20), 20)
    assert step.tokens == {"q1": 1, "q2": 1}
    assert step.drafts == {"q1": 4}
    assert engine.running[1].generated_tokens == 1


def test_an_engine_with_a_prefix_cache_is_refused() -> None:
    engine = EngineState(4096, Limits(64, 8), BLOCK_TOKENS, prefix_caching=True)
    policy = build(VLLM_REAL)
    with pytest.raises(NoPromptContent, match="cannot run with a prefix cache"):
        policy.step(engine.view(0.0, 0.0, MODEL), policy.start())


def test_a_deviating_engine_is_detected() -> None:
    engine = EngineState(4096, Limits(64, 8), BLOCK_TOKENS)
    policy = build(VLLM_REAL)
    engine.add(job(1, 40, 20), 20)
    view = engine.view(0.0, 0.0, MODEL)
    _, memory = policy.step(view, policy.start())
    with pytest.raises(SchedulersDiverged, match="q1"):
        policy.step(view, memory)
