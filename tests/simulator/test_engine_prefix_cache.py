"""An engine with a prefix cache: views of its policies, computed tokens, and pins."""

from random import Random
from typing import Any

import pytest
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import Limits
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.forecast.kv_forecast import forecast_jobs
from penstock_core.policies import build
from penstock_core.timing.time_model import Term, TimeModel
from penstock_simulator.engine.cached_kv import LOOKUPS_PER_VIEW
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.iteration import InvalidStep
from penstock_simulator.prefix_cache.block_keys import recorded_keys

MODEL = TimeModel("any", (Term(1e-6, 0.01),))
SIZE = 16


def engine(blocks: int = 100, running: int = 8, batch_tokens: int = 4096) -> EngineState:
    return EngineState(blocks * SIZE, Limits(batch_tokens, running), SIZE, prefix_caching=True)


def job(name: str, prompt_tokens: int, at_s: float = 0.0, *, best_effort: bool = False) -> Job:
    return new_job(Request(name, "tier", at_s, prompt_tokens, 100), 50, best_effort)


def keys(first: int, prompt_tokens: int) -> list[Any]:
    """Of a prompt whose content is that of all prompts with this first id."""
    return recorded_keys(
        [first * 1000 + i for i in range(-(-prompt_tokens // SIZE))], SIZE, prompt_tokens, SIZE
    )


def serve(state: EngineState, name: str, prompt_tokens: int, first: int, answer_tokens: int = 1) -> None:
    """A request alone, from its arrival to its end."""
    state.add(job(name, prompt_tokens), answer_tokens, keys=keys(first, prompt_tokens))
    (new,) = [waits for waits in state.waiting if waits.request.id == name]
    state.apply(Step({name: new.pending_tokens}), 0.0)
    for _ in range(answer_tokens - 1):
        state.apply(Step({name: 1}), 0.0)
    assert name not in state


def test_a_second_prompt_computes_only_its_new_tokens() -> None:
    state = engine()
    serve(state, "a", 160, first=1)
    assert state.free_blocks == state.total_blocks
    seen = state.candidate(job("b", 200), keys(1, 200))
    assert (seen.computed_tokens, seen.pending_tokens, seen.unheld_blocks) == (160, 40, 10)
    state.add(seen, 5, keys=keys(1, 200))
    assert state.waiting == (seen,)
    assert state.apply(Step({"b": 40}), 1.0).cached_tokens == {"b": 160}
    (running,) = state.running
    assert (running.computed_tokens, running.generated_tokens, running.unheld_blocks) == (200, 1, None)
    assert state.free_blocks == state.total_blocks - 13


def test_without_a_prefix_cache_no_prefix_is_found() -> None:
    state = EngineState(1600, Limits(4096, 8), SIZE)
    state.add(job("a", 160), 1, keys=keys(1, 160))
    state.apply(Step({"a": 160}), 0.0)
    assert state.candidate(job("b", 160), keys(1, 160)) == job("b", 160)
    assert state.cached is None


def test_a_step_that_computes_cached_tokens_is_invalid() -> None:
    state = engine()
    serve(state, "a", 160, first=1)
    state.add(job("b", 200), 5, keys=keys(1, 200))
    with pytest.raises(InvalidStep, match="b has 40 tokens pending, not 200"):
        state.start(Step({"b": 200}))
    assert state.waiting[0].computed_tokens == 160
    assert state.free_blocks == state.total_blocks


def test_blocks_that_two_requests_hold_are_counted_once_and_freed_with_the_second() -> None:
    state = engine()
    serve(state, "a", 160, first=1)
    for name in "bc":
        state.add(job(name, 176), 20, keys=keys(1, 176))
    state.apply(Step({"b": 16, "c": 16}), 0.0)
    assert state.total_blocks - state.free_blocks == 10 + 1 + 1
    view = state.view(0.0, 0.0, MODEL)
    assert view.kv.shared_blocks == {"b": 10, "c": 10}
    assert view.kv.shared_prefixes == (["b", "c"], [0, 10])
    state.abort("b")
    assert state.total_blocks - state.free_blocks == 11
    assert state.view(0.0, 0.0, MODEL).kv.shared_blocks == {}
    state.abort("c")
    assert state.free_blocks == state.total_blocks


def test_a_candidate_names_a_request_that_holds_its_cached_prefix() -> None:
    state = engine()
    serve(state, "a", 160, first=1)
    assert state.candidate(job("c", 176), keys(1, 176)).prefix_of is None
    state.add(job("b", 176), 20, keys=keys(1, 176))
    state.apply(Step({"b": 16}), 0.0)
    seen = state.candidate(job("c", 176), keys(1, 176))
    assert (seen.unheld_blocks, seen.prefix_of) == (0, "b")
    state.abort("b")
    seen = state.candidate(job("c", 176), keys(1, 176))
    assert (seen.unheld_blocks, seen.prefix_of) == (10, None)


@pytest.mark.parametrize("seed", range(20))
def test_the_forecast_for_now_equals_the_engines_held_blocks(seed: int) -> None:
    """Never less, and more by the block of each decode's next token at most."""
    random, state, shared = Random(seed), engine(blocks=400), 0
    for at in range(60):
        prompt = random.randint(20, 600)
        prefix, own = random.randint(0, 3), random.randint(0, prompt // SIZE)
        ids = [*keys(prefix, prompt)[:own], *keys(100 + at, prompt)[own:]]
        if state.waiting_count < 4:
            state.add(job(f"r{at}", prompt), random.randint(1, 40), keys=ids)
        running, waiting = state.running, state.waiting
        fits = state.free_blocks > 100 and state.running_count < 8
        step = {one.request.id: one.pending_tokens for one in (*running, *(waiting[:1] if fits else ()))}
        state.apply(Step(step), float(at))
        view = state.view(float(at), float(at), MODEL)
        now = [one._replace(output_tokens=one.generated_tokens + 1) for one in view.running]
        counted = forecast_jobs(now, view.kv).blocks.sum()
        held = state.total_blocks - state.free_blocks
        assert held <= counted <= held + len(now)
        shared += bool(view.kv.shared_blocks)
    assert shared > 10, "requests share blocks"


def test_a_pinned_prefix_survives_others_that_fill_the_memory() -> None:
    """A request admitted with a hit still has it when its prefill begins; one that was not may lose it."""
    for pinned, cached in ((True, 160), (False, 0)):
        state = engine(blocks=30)
        serve(state, "a", 160, first=1)
        state.add(job("late", 176, at_s=1.0), 5, keys=keys(1, 176), pinned=pinned)
        assert state.free_blocks == (20 if pinned else 30)
        serve(state, "b", 19 * SIZE, first=2)
        serve(state, "c", 19 * SIZE, first=3)
        (late,) = state.waiting
        assert late.computed_tokens == cached
        result = state.apply(Step({"late": late.pending_tokens}), 2.0)
        assert result.cached_tokens == {"late": cached}


def test_pins_are_released_before_a_running_request_is_preempted() -> None:
    state = engine(blocks=20)
    serve(state, "a", 160, first=1)
    state.add(job("pinned", 176, at_s=1.0), 5, keys=keys(1, 176), pinned=True)
    state.add(job("b", 160), 30, keys=keys(2, 160))
    state.apply(Step({"b": 160}), 0.0)
    assert state.free_blocks == 0
    state.apply(Step({"b": 1}), 0.0)
    assert state.preemptions == 0
    (pinned,) = state.waiting
    assert (pinned.computed_tokens, pinned.unheld_blocks) == (144, 9)  # it lost one block


def test_pins_are_released_if_no_request_can_progress() -> None:
    state = engine(blocks=20)
    serve(state, "a", 160, first=1)
    state.add(job("pinned", 176), 5, keys=keys(1, 176), pinned=True)
    state.apply(Step(), 0.0)
    assert state.free_blocks == 20
    assert state.waiting[0].unheld_blocks == 10


def test_a_promoted_request_is_pinned() -> None:
    state = engine()
    serve(state, "a", 160, first=1)
    state.add(job("b", 176, best_effort=True), 5, keys=keys(1, 176))
    state.add(job("c", 32, at_s=1.0), 5)
    assert state.waiting[0].unheld_blocks == 10
    state.apply(Step({"c": 32}, promote=("b",)), 0.0)
    assert state.waiting[0].unheld_blocks == 0
    state.abort("b")
    assert state.total_blocks - state.free_blocks == 2


def test_a_preempted_request_resumes_with_its_blocks_that_are_still_cached() -> None:
    state = engine()
    state.add(job("a", 160), 50, keys=keys(1, 160))
    state.apply(Step({"a": 160}), 0.0)
    for _ in range(20):
        state.apply(Step({"a": 1}), 0.0)
    state.apply(Step(preempt=("a",)), 0.0)
    (a,) = state.waiting
    assert (a.computed_tokens, a.pending_tokens, a.decoding) == (176, 5, False)


def test_a_request_is_counted_once_however_often_it_is_preempted() -> None:
    """As in vLLM, whose counters leave out requests that were preempted before."""
    state = engine()
    state.add(job("a", 320), 50, keys=keys(1, 320))
    state.apply(Step({"a": 320}), 0.0)
    state.apply(Step(preempt=("a",)), 0.0)
    assert state.apply(Step({"a": state.waiting[0].pending_tokens}), 0.0).cached_tokens == {"a": 304}
    assert state.cached is not None
    assert (state.cached.queried_tokens, state.cached.hit_tokens) == (320, 0)


def test_a_preempted_request_never_counts_as_a_decode() -> None:
    state = engine()
    state.add(job("a", 160), 50, keys=keys(1, 160))
    state.apply(Step({"a": 160}), 0.0)
    state.apply(Step(preempt=("a",)), 0.0)  # with one token more than whole blocks
    (a,) = state.waiting
    assert (a.pending_tokens, a.decoding) == (17, False)


def test_only_the_first_of_the_queue_are_looked_up() -> None:
    state = engine(blocks=1000, running=100)
    serve(state, "a", 160, first=1)
    for i in range(LOOKUPS_PER_VIEW + 2):
        state.add(job(f"q{i}", 160, at_s=float(i)), 5, keys=keys(1, 160))
    assert [waits.computed_tokens > 0 for waits in state.waiting] == [True] * LOOKUPS_PER_VIEW + [False] * 2
    state.apply(Step({f"q{LOOKUPS_PER_VIEW}": 160}), 0.0)
    assert state.running[0].computed_tokens == 160


def test_a_request_that_arrives_with_its_kv_holds_its_own_blocks() -> None:
    state = engine()
    ready = job("a", 160)._replace(computed_tokens=160, generated_tokens=1)
    state.receive(ready, 5)
    assert state.total_blocks - state.free_blocks == 10
    state.apply(Step({"a": 1}), 0.0)
    assert state.total_blocks - state.free_blocks == 11


@pytest.mark.parametrize("name", ["slos-serve", "vllm", "accelgen", "fastserve", "fluidserve", "sola"])
@pytest.mark.parametrize("seed", [1, 2])
def test_requests_with_common_prefixes_are_served_to_the_end_in_scarce_memory(name: str, seed: int) -> None:
    """Every step is one that the engine accepts, and in the end no block is lost."""
    random, state, now_s = Random(seed), engine(blocks=80, running=6, batch_tokens=256), 0.0
    policy: Any = build(name)
    memory, left, found = policy.start(), 40, 0
    while left or state.running_count or state.waiting_count:
        if left and random.random() < 0.3:
            left -= 1
            tokens = random.randint(20, 600)
            new = job(f"r{left}", tokens, now_s, best_effort=random.random() < 0.5)
            first = random.randint(1, 3)
            pinned = not new.best_effort and random.random() < 0.5
            state.add(new, random.randint(1, 60), keys=keys(first, tokens), pinned=pinned)
        if random.random() < 0.02 and state.waiting_count:
            state.abort(random.choice(state.waiting).request.id)
        step, memory = policy.step(state.view(now_s, now_s, MODEL), memory)
        now_s += 0.05
        found += sum(state.apply(step, now_s).cached_tokens.values())
        assert now_s < 500
    assert found > 1000
    assert state.free_blocks == state.total_blocks
