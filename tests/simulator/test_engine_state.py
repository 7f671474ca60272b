"""Execution of a policy's steps by the engine: tokens, blocks, memory, and refused steps."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import Limits
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Targets
from penstock_core.timing.acceptance_rate import Drafted
from penstock_core.timing.time_model import Term, TimeModel
from penstock_simulator.engine.engine_state import EngineState, NeverFits
from penstock_simulator.engine.iteration import Finish, InvalidStep

from examples import examples

MODEL = TimeModel("any", (Term(1e-6, 0.01),))
Make = Callable[..., Job]


def engine(blocks: int = 100, running: int = 8, batch_tokens: int = 512, **more: object) -> EngineState:
    return EngineState(blocks * 16, Limits(batch_tokens, running), 16, **more)  # type: ignore[arg-type]


def ids(jobs: tuple[Job, ...]) -> list[str]:
    return [job.request.id for job in jobs]


def test_a_prompt_in_two_chunks_returns_its_first_token_with_the_second(job: Make) -> None:
    state = engine()
    state.add(job("a", prompt_tokens=30), 5)
    assert state.apply(Step({"a": 20}), 1.0).tokens == {}
    assert state.apply(Step({"a": 10}), 2.0).tokens == {"a": 1}
    (a,) = state.running
    assert (a.computed_tokens, a.generated_tokens, a.decoding) == (30, 1, True)
    assert a.anchor is not None
    assert a.anchor.at_s == 2.0


@pytest.mark.parametrize(("answer_tokens", "finish"), [(3, Finish.STOP), (100, Finish.LENGTH)])
def test_an_answer_ends_at_its_true_length(job: Make, answer_tokens: int, finish: Finish) -> None:
    state = engine()
    state.add(job("a"), answer_tokens)
    outcomes = [state.apply(Step({"a": 10}), 0.0)]
    outcomes += [state.apply(Step({"a": 1}), 0.0) for _ in range(answer_tokens - 1)]
    assert sum(outcome.tokens["a"] for outcome in outcomes) == answer_tokens
    assert outcomes[-1].finished == {"a": finish}
    assert (state.running, state.free_blocks) == ((), state.total_blocks)


def test_each_block_boundary_adds_a_block(job: Make) -> None:
    state = engine()
    state.add(job("a", prompt_tokens=16), 50)
    state.apply(Step({"a": 16}), 0.0)
    assert state.total_blocks - state.free_blocks == 1
    state.apply(Step({"a": 1}), 0.0)
    assert state.total_blocks - state.free_blocks == 2


def test_requests_wait_in_order_of_arrival_including_preempted_ones(job: Make) -> None:
    state = engine()
    for at, name in enumerate("abc"):
        state.add(job(name, arrival_s=at), 9)
    state.apply(Step({"b": 10, "a": 10}), 0.0)
    assert ids(state.running) == ["b", "a"]
    state.apply(Step({"a": 1}, preempt=("b",)), 0.0)
    assert ids(state.waiting) == ["b", "c"]


def test_a_preempted_job_waits_before_arrivals_of_the_same_instant(job: Make) -> None:
    state = engine()
    for name in "abc":
        state.add(job(name), 5)
    state.apply(Step({"a": 10, "b": 10}), 0.0)
    state.apply(Step(preempt=("b", "a")), 0.0)
    assert ids(state.waiting) == ["a", "b", "c"]


def test_a_preempted_job_keeps_its_tokens_and_prefills_over_them(job: Make) -> None:
    state = engine()
    state.add(job("a", prompt_tokens=10), 9)
    state.apply(Step({"a": 10}), 0.0)
    state.apply(Step({"a": 1}), 0.0)
    state.apply(Step(preempt=("a",)), 0.0)
    (a,) = state.waiting
    assert (a.generated_tokens, a.computed_tokens, a.pending_tokens) == (2, 0, 12)
    assert (state.free_blocks, state.preemptions) == (state.total_blocks, 1)
    assert state.apply(Step({"a": 12}), 0.0).tokens == {"a": 1}


def test_growth_without_free_blocks_preempts_best_effort_and_then_the_latest(job: Make) -> None:
    state = engine(blocks=3)
    state.add(job("best", prompt_tokens=16, best_effort=True), 20)
    state.add(job("a", prompt_tokens=16), 20)
    state.add(job("b", prompt_tokens=16), 20)
    state.apply(Step({"best": 16, "a": 16, "b": 16}), 0.0)
    outcome = state.apply(Step({"best": 1, "a": 1}), 0.0)
    assert (outcome.preempted, outcome.tokens) == (("best",), {"a": 1})
    outcome = state.apply(Step({"a": 1, "b": 1}), 0.0)
    assert outcome.preempted == ("b",)


def test_new_requests_of_the_step_are_preempted_before_running_ones(job: Make) -> None:
    state = engine(blocks=2)
    state.add(job("a", prompt_tokens=16), 10)
    state.apply(Step({"a": 16}), 0.0)
    state.add(job("new"), 9)
    outcome = state.apply(Step({"new": 10, "a": 1}), 0.0)
    assert (outcome.tokens, outcome.preempted, ids(state.waiting)) == ({"a": 1}, (), ["new"])


def test_an_abort_during_an_iteration_frees_blocks_immediately_and_returns_no_token(job: Make) -> None:
    state = engine()
    state.add(job("a"), 9)
    state.start(Step({"a": 10}))
    assert state.abort("a")
    assert state.free_blocks == state.total_blocks
    assert state.finish(1.0).tokens == {}
    assert not state.abort("a")


def test_accepted_drafts_are_returned_with_the_token(job: Make) -> None:
    state = engine(accept=lambda drafts: drafts - 1)
    state.add(job("a"), 5)
    state.apply(Step({"a": 10}), 0.0)
    outcome = state.apply(Step({"a": 1}, drafts={"a": 3}), 0.0)
    assert (outcome.tokens, outcome.drafted) == ({"a": 3}, [Drafted("chat", 3, 2)])
    outcome = state.apply(Step({"a": 1}, drafts={"a": 3}), 0.0)
    assert outcome.tokens == {"a": 1}  # only one was left, however many were right
    assert outcome.drafted == [Drafted("chat", 3, 2)]


def test_a_promoted_job_is_admitted_and_keeps_its_place(job: Make) -> None:
    state = engine()
    for name in "ab":
        state.add(job(name, best_effort=True), 9)
    state.apply(Step({"a": 10}), 0.0)
    state.apply(Step({"a": 1}, promote=("a", "b")), 0.0)
    assert [each.best_effort for each in (*state.running, *state.waiting)] == [False, False]


@pytest.mark.parametrize("drafts", [0, 3])
def test_the_answer_gets_its_own_tpot_target_with_the_last_token_of_thinking(job: Make, drafts: int) -> None:
    state = engine(accept=lambda drafts: drafts)
    thinker = job("a", targets=Targets(tpot_s=0.03, answer_tpot_s=0.1))
    state.add(thinker, 20, thinking_tokens=4)
    state.apply(Step({"a": 10}), 1.0)
    paces = []
    for turn in range(2, 6):
        step = Step({"a": 1}, drafts={"a": drafts} if drafts else {})
        state.apply(step, float(turn))
        paces.append(state.running[0].tpot_s)
    finished_thinking_tokens = 1 if drafts else 3
    assert paces == [0.03] * (finished_thinking_tokens - 1) + [0.1] * (5 - finished_thinking_tokens)
    assert state.running[0].anchor == (finished_thinking_tokens + 1.0, 5 if drafts else 4)


def test_a_job_that_exceeds_its_prediction_gets_a_longer_one(job: Make) -> None:
    state = engine(extend_prediction=lambda job: job.generated_tokens * 3)
    state.add(job("a")._replace(output_tokens=4), 40)
    state.apply(Step({"a": 10}), 0.0)
    lengths = []
    for _ in range(12):
        state.apply(Step({"a": 1}), 0.0)
        lengths.append(state.running[0].output_tokens)
    assert lengths == [4, 9, 9, 9, 9, 9, 24, 24, 24, 24, 24, 24]


def test_an_iteration_has_the_work_of_the_gpu(job: Make) -> None:
    state = engine()
    for name in "abc":
        state.add(job(name, prompt_tokens=20), 50)
    state.apply(Step({"a": 20, "b": 20, "c": 8}), 0.0)
    shape = state.start(Step({"a": 1, "b": 1, "c": 12}, drafts={"b": 4})).shape()
    assert shape.chunks == ((12, 8),)
    assert (shape.decodes, shape.context_tokens, shape.draft_tokens, shape.spec_steps) == (2, 42, 4, 4)
    assert shape.tokens == 18


INVALID = {
    "an unknown job": (Step({"x": 1}), "unknown"),
    "more than pending": (Step({"a": 2}), "1 tokens pending"),
    "nothing": (Step({"a": 0}), "pending, not 0"),
    "too large a batch": (Step({"w": 60, "v": 60}), "at most 64"),
    "too many running": (Step({"w": 1, "v": 1}), "at most 2"),
    "new requests without room": (Step({"w": 60}), "4 blocks, 3 are free"),
    "preempting who waits": (Step(preempt=("w",)), "not running"),
    "preempting who computes": (Step({"a": 1}, preempt=("a",)), "in the batch"),
    "preempting twice": (Step(preempt=("a", "a")), "twice"),
    "promoting who is unknown": (Step(promote=("x",)), "unknown"),
    "promoting an admitted request": (Step(promote=("a",)), "not best effort"),
    "drafts of a prefill": (Step({"w": 5}, drafts={"w": 1}), "draft tokens"),
    "drafts of an absent one": (Step({}, drafts={"a": 1}), "not in the batch"),
}


@pytest.mark.parametrize(("step", "words"), INVALID.values(), ids=INVALID.keys())
def test_an_invalid_step_is_rejected_without_a_change(job: Make, step: Step, words: str) -> None:
    state = engine(blocks=4, running=2, batch_tokens=64)
    state.add(job("a", prompt_tokens=10), 30)
    state.apply(Step({"a": 10}), 0.0)
    state.add(job("w", prompt_tokens=60), 1)
    state.add(job("v", prompt_tokens=60), 1)
    before = (state.running, state.waiting, state.free_blocks, state.preemptions)
    with pytest.raises(InvalidStep, match=words):
        state.start(step)
    assert (state.running, state.waiting, state.free_blocks, state.preemptions) == before


def test_a_request_that_can_never_fit_is_refused(job: Make) -> None:
    state = engine(blocks=2)
    with pytest.raises(NeverFits):
        state.add(job("a", prompt_tokens=30), 3)
    state.add(job("a", prompt_tokens=30), 2)
    with pytest.raises(ValueError, match="already in the engine"):
        state.add(job("a"), 1)


@examples(100)
@given(st.data())
def test_no_block_is_lost_and_no_token_forgotten(data: st.DataObject) -> None:
    state = engine(blocks=12, running=5, batch_tokens=64, accept=lambda drafts: drafts // 2)
    wanted: dict[str, int] = {}
    came: dict[str, int] = {}
    for turn in range(data.draw(st.integers(1, 25))):
        if data.draw(st.booleans()):
            name = f"r{turn}"
            wanted[name] = data.draw(st.integers(1, 40))
            came[name] = 0
            request = Request(name, "chat", float(turn), data.draw(st.integers(1, 100)), 40)
            state.add(new_job(request, 40, data.draw(st.booleans())), wanted[name])
        state.start(random_step(data, state))
        if came and data.draw(st.integers(0, 5)) == 0:
            name = data.draw(st.sampled_from(sorted(came)))
            if state.abort(name):
                del wanted[name], came[name]
        outcome = state.finish(float(turn))
        for name, tokens in outcome.tokens.items():
            came[name] += tokens
        assert_sound(state, came, wanted, set(outcome.finished))


def random_step(data: st.DataObject, state: EngineState) -> Step:
    """Any step that is possible."""
    view = state.view(0.0, 0.0, MODEL)
    preempt = tuple(job.request.id for job in view.running if data.draw(st.integers(0, 9)) == 0)
    tokens: dict[str, int] = {}
    drafts: dict[str, int] = {}
    room, free, entries = 64, view.kv.free_blocks, 5 - len(view.running)
    for job in (*view.running, *view.waiting):
        name, waits = job.request.id, job in view.waiting
        if name in preempt or room < 4 or (waits and entries == 0) or data.draw(st.integers(0, 3)) == 0:
            continue
        chunk = data.draw(st.integers(1, min(job.pending_tokens, room - 3)))
        if waits and view.kv.blocks_for(chunk) > free:
            continue
        tokens[name] = chunk
        room -= chunk
        if waits:
            free, entries = free - view.kv.blocks_for(chunk), entries - 1
        elif job.decoding and data.draw(st.booleans()):
            drafts[name] = data.draw(st.integers(1, 3))
            room -= drafts[name]
    return Step(tokens, preempt, drafts)


def assert_sound(
    state: EngineState, came: dict[str, int], wanted: dict[str, int], finished: set[str]
) -> None:
    held = sum(entry.blocks for entry in state._running.values())
    assert held + state.free_blocks == state.total_blocks
    assert state.free_blocks >= 0
    for entry in state._running.values():
        assert entry.blocks * 16 >= entry.job.computed_tokens
    for job in (*state.running, *state.waiting):
        assert job.generated_tokens == came[job.request.id] < wanted[job.request.id]
    for name in finished:
        assert came[name] == wanted[name]
        assert name not in state
    assert len(state.running) <= 5
