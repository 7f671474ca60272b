"""A policy's step as what vLLM must do: nothing is said of those who do what they would do anyway."""

from types import SimpleNamespace
from typing import Any

import pytest
from penstock_core.domain.engine_fields import from_fields
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job
from penstock_core.timing.builtin_models import time_model
from penstock_vllm.ledger import Held
from penstock_vllm.plan import ImpossibleStep, plan_of


def job(name: str, *, decodes: bool) -> Job:
    made = from_fields({}, engine_id=name, prompt_tokens=100, max_output_tokens=50, now_s=0.0)
    return made._replace(computed_tokens=100, generated_tokens=1) if decodes else made


RUNNING = tuple([job(name, decodes=True) for name in ("a", "b")])
WAITING = tuple([job(name, decodes=False) for name in ("x", "y")])
VIEW = ReplicaView(
    0.0, 0.0, RUNNING, WAITING, KvCache(100, 80, 16), Limits(150, 8), time_model("llama-3-8b-a100"), None
)
EVERYBODY = {"a": 1, "b": 1}


def held() -> dict[str, Held]:
    def of(one: Job) -> Held:
        request: Any = SimpleNamespace(request_id=f"engine-{one.request.id}")
        return Held(request, one)

    return {one.request.id: of(one) for one in (*RUNNING, *WAITING)}


def test_everybody_s_next_token_is_nothing_to_carry_out() -> None:
    plan = plan_of(Step(EVERYBODY, stands_blocks=7), VIEW, held())
    assert (plan.order, plan.start, plan.caps, plan.stands_blocks) == (None, (), None, 7)


def test_newcomers_behind_everybody_are_all_that_is_carried_out() -> None:
    here = held()
    whole = plan_of(Step({**EVERYBODY, "y": 100}, stands_blocks=7), VIEW, here)
    assert (whole.order, whole.start, whole.caps, whole.stands_blocks) == (None, (here["y"],), None, None)
    part = plan_of(Step({**EVERYBODY, "x": 40, "y": 100}), VIEW, here)
    assert (part.order, part.start, part.caps) == (None, (here["x"], here["y"]), {"engine-x": 40})


@pytest.mark.parametrize(
    "tokens",
    [{"b": 1, "a": 1, "x": 100}, {"a": 1, "x": 100}, {"a": 1, "x": 100, "b": 1}, {"x": 100}],
    ids=["another order", "one rests", "a newcomer first", "only a newcomer"],
)
def test_any_other_step_says_everything(tokens: dict[str, int]) -> None:
    here = held()
    plan = plan_of(Step(tokens), VIEW, here)
    assert plan.order == tuple([here[name] for name in tokens if name in EVERYBODY])
    assert plan.start == (here["x"],)
    assert plan.caps == {f"engine-{name}": tokens.get(name, 0) for name in (*EVERYBODY, "x")}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"nobody": 1}, "nobody is not here"),
        ({"x": 101}, "x has 100 tokens pending, not 101"),
        ({"x": 0}, "x has 100 tokens pending, not 0"),
        ({"x": 100, "y": 49}, "151 tokens in a batch of at most 150"),
    ],
)
def test_newcomers_that_cannot_be_are_refused(more: dict[str, int], why: str) -> None:
    with pytest.raises(ImpossibleStep, match=why):
        plan_of(Step({**EVERYBODY, **more}), VIEW, held())


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


def test_drafts_count_for_the_batch_of_everybody_and_newcomers_too() -> None:
    with pytest.raises(ImpossibleStep, match="151 tokens in a batch of at most 150"):
        plan_of(Step({**EVERYBODY, "x": 100}, drafts={"a": 49}), VIEW, held())
