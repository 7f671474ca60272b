"""A policy's step as instructions to vLLM, without requests that need none."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from penstock_core.domain.engine_fields import from_fields
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job
from penstock_core.timing.builtin_models import time_model
from penstock_vllm.ledger import HeldRequest
from penstock_vllm.plan import ImpossibleStep, plan_of


def job(name: str, *, decodes: bool) -> Job:
    made = from_fields({}, engine_id=name, prompt_tokens=100, max_output_tokens=50, now_s=0.0)
    return made._replace(computed_tokens=100, generated_tokens=1) if decodes else made


RUNNING = tuple([job(name, decodes=True) for name in ("a", "b")])
WAITING = tuple([job(name, decodes=False) for name in ("x", "y")])
VIEW = ReplicaView(
    0.0, 0.0, RUNNING, WAITING, KvCache(100, 80, 16), Limits(150, 8), time_model("llama-3-8b-a100"), None
)
ALL_RUNNING = {"a": 1, "b": 1}


def held() -> dict[str, HeldRequest]:
    def of(one: Job) -> HeldRequest:
        request: Any = SimpleNamespace(request_id=f"engine-{one.request.id}")
        return HeldRequest(request, one)

    return {one.request.id: of(one) for one in (*RUNNING, *WAITING)}


def test_a_plan_of_one_token_for_every_running_request_has_no_changes() -> None:
    plan = plan_of(Step(ALL_RUNNING, repeatable_blocks=7), VIEW, held())
    assert (plan.order, plan.start, plan.caps, plan.repeatable_blocks) == (None, (), None, 7)


def test_new_requests_after_the_running_ones_are_the_only_change() -> None:
    here = held()
    whole = plan_of(Step({**ALL_RUNNING, "y": 100}, repeatable_blocks=7), VIEW, here)
    assert (whole.order, whole.start, whole.caps, whole.repeatable_blocks) == (None, (here["y"],), None, None)
    part = plan_of(Step({**ALL_RUNNING, "x": 40, "y": 100}), VIEW, here)
    assert (part.order, part.start, part.caps) == (None, (here["x"], here["y"]), {"engine-x": 40})


@pytest.mark.parametrize(
    "tokens",
    [
        {"b": 1, "a": 1},
        {"b": 1, "a": 1, "x": 100},
        {"a": 1, "x": 100},
        {"a": 1, "x": 100, "b": 1},
        {"x": 100},
    ],
    ids=["in another order", "another order", "one rests", "a new request first", "only a new request"],
)
def test_any_other_step_is_described_in_full(tokens: dict[str, int]) -> None:
    here = held()
    plan = plan_of(Step(tokens), VIEW, here)
    assert plan.order == tuple([here[name] for name in tokens if name in ALL_RUNNING])
    assert plan.start == tuple([here[name] for name in tokens if name not in ALL_RUNNING])
    assert plan.caps == {f"engine-{name}": tokens.get(name, 0) for name in {**ALL_RUNNING, **tokens}}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"nobody": 1}, "nobody is unknown"),
        ({"x": 101}, "x has 100 tokens pending, not 101"),
        ({"x": 0}, "x has 100 tokens pending, not 0"),
        ({"x": 100, "y": 49}, "151 tokens in a batch of at most 150"),
    ],
)
def test_impossible_new_requests_are_refused(more: dict[str, int], why: str) -> None:
    with pytest.raises(ImpossibleStep, match=why):
        plan_of(Step({**ALL_RUNNING, **more}), VIEW, held())


@pytest.mark.parametrize(
    ("drafts", "fits"), [({"a": 3, "b": 45}, True), ({"a": 3, "b": 46}, False), ({"a": -1}, False)]
)
def test_drafts_count_for_the_batch(drafts: dict[str, int], fits: bool) -> None:
    step = Step({"b": 1, "a": 1, "x": 100}, drafts=drafts)
    if fits:
        assert plan_of(step, VIEW, held()).drafts == drafts
    else:
        with pytest.raises(ImpossibleStep):
            plan_of(step, VIEW, held())


def test_draft_tokens_count_in_a_batch_of_all_requests_and_new_ones() -> None:
    with pytest.raises(ImpossibleStep, match="151 tokens in a batch of at most 150"):
        plan_of(Step({**ALL_RUNNING, "x": 100}, drafts={"a": 49}), VIEW, held())


@pytest.mark.parametrize(
    "step",
    [
        Step({"a": 1}, preempt=("x",)),
        Step({"a": 1}, preempt=("a",)),
        Step({"a": 1}, preempt=("b", "b")),
        Step({"a": 1}, preempt=("nobody",)),
        Step({"a": 1}, promote=("nobody",)),
        Step({"a": 1, "x": 5}, drafts={"b": 1}),
        Step({"b": 1, "a": 2}),
        Step({"a": 2, "b": 1}),
    ],
    ids=str,
)
def test_a_step_that_no_engine_could_execute_is_refused(step: Step) -> None:
    with pytest.raises(ImpossibleStep):
        plan_of(step, VIEW, held())


def test_preempted_and_promoted_requests_are_reported_with_the_rest() -> None:
    here = held()
    plan = plan_of(Step({"a": 1, "x": 100}, preempt=("b",), drafts={"a": 2}, promote=("x", "a")), VIEW, here)
    assert (plan.preempt, plan.order, plan.start) == ((here["b"],), (here["a"],), (here["x"],))
    assert plan.caps == {"engine-a": 3, "engine-b": 0, "engine-x": 100}
    assert (plan.drafts, plan.promote, plan.repeatable_blocks) == ({"a": 2}, (here["x"], here["a"]), None)
    only = plan_of(Step(ALL_RUNNING, promote=("x",)), VIEW, here)
    assert (only.order, only.promote) == ((here["a"], here["b"]), (here["x"],))


def test_draft_tokens_of_all_requests_need_no_reordering() -> None:
    plan = plan_of(Step(ALL_RUNNING, drafts={"a": 2}), VIEW, held())
    assert (plan.order, plan.caps, plan.drafts) == (None, None, {"a": 2})


def test_a_step_with_a_prompt_in_progress_is_not_a_decode_step() -> None:
    begun = job("p", decodes=False)._replace(computed_tokens=40)
    view = replace(VIEW, running=(*RUNNING, begun))
    here = held() | {"p": HeldRequest(SimpleNamespace(request_id="engine-p"), begun)}
    plan = plan_of(Step({**ALL_RUNNING, "p": 60}), view, here)
    assert plan.caps == {"engine-a": 1, "engine-b": 1, "engine-p": 60}
    with pytest.raises(ImpossibleStep, match="p cannot draft 1 tokens"):
        plan_of(Step({**ALL_RUNNING, "p": 60}, drafts={"p": 1}), view, here)
    plan_of(Step({**ALL_RUNNING, "p": 60}, drafts={"p": 0}), view, here)
