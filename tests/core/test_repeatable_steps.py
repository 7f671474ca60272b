"""A repeatable step equals the step that the policy would return at each repetition."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, after_each, new_job
from penstock_core.domain.slo import Judge, Targets
from penstock_core.policies import POLICIES, build
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation

REPEATABLE = ("slos-serve", "vllm", "sarathi", "sjf", "fcfs", "orca", "vllm-legacy")
MODEL = time_model("llama-3-8b-a100")


def waiting(name: str, *, best_effort: bool = False, judge: Judge = Judge.MEAN) -> Job:
    request = Request(name, "chat", 0.0, 100, 1000, Targets(1.0, 0.05, judge=judge))
    return new_job(request, 200, best_effort=best_effort)


def decode(name: str, tokens: int = 1, **how: bool | Judge) -> Job:
    job = advance(waiting(name, **how), 100, 1, 0.5)  # type: ignore[arg-type]
    return after_each([job], [0.6 + n / 20 for n in range(tokens)])[0]


def view(*running: Job, **other: object) -> ReplicaView:
    there = ReplicaView(2.0, 2.0, running, (), KvCache(1000, 100, 16), Limits(64, 64), MODEL)
    return replace(there, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_only_some_policies_have_repeatable_steps(policy: str) -> None:
    scheduler = build(policy)
    step, _ = scheduler.step(view(decode("a"), decode("b")), scheduler.start())
    assert step.tokens == {"a": 1, "b": 1}
    assert step.repeatable_blocks == (2 if policy in REPEATABLE else None)


@pytest.mark.parametrize("policy", REPEATABLE)
@given(
    came=st.lists(st.tuples(st.integers(1, 50), st.sampled_from(Judge)), min_size=1, max_size=8),
    took_s=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=30),
    spare_blocks=st.integers(0, 50),
    scale=st.floats(0.5, 2.0),
)
def test_a_repeatable_step_is_the_same_at_every_later_state(
    policy: str, came: list[tuple[int, Judge]], took_s: list[float], spare_blocks: int, scale: float
) -> None:
    jobs = [decode(f"{at}", count, judge=judge) for at, (count, judge) in enumerate(came)]
    scheduler, before = build(policy), view(*jobs)
    step, memory = scheduler.step(before, scheduler.start())
    assert step.repeatable_blocks is not None
    ends_s = [2.0 + sum(took_s[: n + 1]) for n in range(len(took_s))]
    kv = replace(before.kv, free_blocks=step.repeatable_blocks + spare_blocks)
    later = view(*after_each(jobs, ends_s), now_s=ends_s[-1], kv=kv, model=replace(MODEL, scale=scale))
    again, memory_then = scheduler.step(later, memory)
    assert replace(again, duration_s=step.duration_s) == step
    assert memory_then == memory


@pytest.mark.parametrize("policy", REPEATABLE)
@pytest.mark.parametrize(
    "there",
    [
        view(decode("a"), waiting=(waiting("b"),)),
        view(decode("a"), advance(waiting("b"), 50, 0, 1.0)),
        view(decode("a"), speculation=Speculation(2, 0.7)),
        view(decode("a"), decode("b"), limits=Limits(1, 64)),
    ],
    ids=["somebody waits", "somebody prefills", "drafts", "tokens are short"],
)
def test_a_step_that_may_change_is_not_repeatable(policy: str, there: ReplicaView) -> None:
    scheduler = build(policy)
    assert scheduler.step(there, scheduler.start())[0].repeatable_blocks is None


@pytest.mark.parametrize("arrival_s", [0.0, -1000.0], ids=["surplus", "waited too long"])
def test_slos_serve_steps_with_best_effort_are_not_repeatable(arrival_s: float) -> None:
    offline = decode("b", best_effort=True)
    offline = offline._replace(request=replace(offline.request, arrival_s=arrival_s))
    scheduler = build("slos-serve")
    assert scheduler.step(view(decode("a"), offline), None)[0].repeatable_blocks is None
