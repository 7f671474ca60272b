"""The policies by name, and vLLM's order step by step."""

import pytest
from penstock_core.domain.policy import Knobs, Step
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.domain.verdict import Admitted, BestEffort
from penstock_core.policies import POLICIES, UnknownPolicy, build
from penstock_core.policies.slos_serve.policy import SlosServe
from penstock_core.policies.vllm import Vllm
from penstock_core.timing.builtin_models import time_model
from replica_views import kv_cache

MODEL = time_model("slos-serve-opt-6.7b-a100")


def prompt(
    name: str, tokens: int = 100, *, done: int = 0, at_s: float = 0.0, best_effort: bool = False
) -> Job:
    job = new_job(Request(name, "tier", at_s, tokens, 500, Targets(5.0, 0.1)), 50, best_effort)
    return advance(job, done, 0, 0.0) if done else job


def decode(name: str, context: int = 100, best_effort: bool = False) -> Job:
    return advance(prompt(name, context, best_effort=best_effort), context, 1, 0.0)


def replica(
    running: list[Job],
    waiting: list[Job],
    free_blocks: int = 100,
    limits: Limits | None = None,
    now_s: float = 0.0,
) -> ReplicaView:
    kv = kv_cache(running, free_blocks)
    return ReplicaView(now_s, now_s, tuple(running), tuple(waiting), kv, limits or Limits(), MODEL)


def vllm_step(view: ReplicaView) -> Step:
    return Vllm().step(view, None)[0]


def test_every_name_builds_its_policy_and_an_empty_replica_has_nothing_to_do() -> None:
    for name in POLICIES:
        policy = build(name)
        assert policy.step(replica([], []), policy.start())[0] == Step()


def test_a_pool_sets_how_long_best_effort_waits() -> None:
    assert build("slos-serve", Knobs(aging_s=7.0)) == SlosServe(aging_s=7.0)


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownPolicy) as reported:
        build("vlm")
    assert str(reported.value) == f"no policy is called 'vlm'; there are: {', '.join(POLICIES)}"
    assert (reported.value.name, reported.value.known) == ("vlm", tuple(POLICIES))


VLLM_ORDER = {
    "running first, in the order they were started, then waiting": (
        replica([decode("a"), prompt("b", 100, done=40), decode("c")], [prompt("d"), prompt("e")]),
        {"a": 1, "b": 60, "c": 1, "d": 100, "e": 100},
        (),
    ),
    "the token budget cuts the last prompt": (
        replica([decode("a")], [prompt("b"), prompt("c")], limits=Limits(batch_tokens=150)),
        {"a": 1, "b": 100, "c": 49},
        (),
    ),
    "a prompt under way takes the budget before later decodes": (
        replica([prompt("a", 500, done=100), decode("b")], [], limits=Limits(batch_tokens=64)),
        {"a": 64},
        (),
    ),
    "no more run than there are slots": (
        replica([decode("a")], [prompt("b"), prompt("c")], limits=Limits(running=2)),
        {"a": 1, "b": 100},
        (),
    ),
    "a prompt without blocks holds up those behind it": (
        replica([decode("a")], [prompt("b", 900), prompt("c", 16)], free_blocks=10),
        {"a": 1},
        (),
    ),
    "out of blocks, the last started is preempted and no request starts": (
        replica([decode("a", 96), decode("b", 96), decode("c", 96)], [prompt("d", 16)], free_blocks=0),
        {"a": 1, "b": 1},
        ("c",),
    ),
    "alone and out of blocks, it gives way itself": (
        replica([decode("a", 96)], [], free_blocks=0),
        {},
        ("a",),
    ),
    "best effort takes its turn like the rest": (
        replica([decode("a", best_effort=True)], [prompt("b", best_effort=True), prompt("c")]),
        {"a": 1, "b": 100, "c": 100},
        (),
    ),
}


@pytest.mark.parametrize("case", VLLM_ORDER)
def test_vllm_serves_in_its_own_order(case: str) -> None:
    view, tokens, preempt = VLLM_ORDER[case]
    step = vllm_step(view)
    assert list(step.tokens.items()) == list(tokens.items())
    assert step.preempt == preempt


def test_vllm_admits_all_requests_and_predicts_the_wait_behind_the_queue() -> None:
    view = replica(
        [decode("a"), prompt("b", 500, done=100)], [prompt("c", 300)], limits=Limits(batch_tokens=256)
    )
    first, offline, second = Vllm().admit(view, [prompt("d"), prompt("e", best_effort=True), prompt("f")])
    assert isinstance(first, Admitted)
    assert isinstance(second, Admitted)
    assert offline == BestEffort()
    full_s, rest_s = MODEL.prefill_seconds(256), MODEL.prefill_seconds(1 + 800 - 3 * 255)
    assert first.ttft_predicted_s == pytest.approx(3 * full_s + rest_s)
    assert first.ttft_predicted_s < second.ttft_predicted_s
    assert first.tpot_predicted_s < second.tpot_predicted_s


def test_slos_serve_admits_requests_whose_slo_it_can_meet() -> None:
    verdicts = SlosServe().admit(replica([], [], 2000), [prompt("a"), prompt("b", best_effort=True)])
    assert [type(verdict) for verdict in verdicts] == [Admitted, BestEffort]


def test_slos_serve_protects_the_oldest_best_effort_job_while_all_slos_are_met() -> None:
    offline = prompt("offline", 3000, best_effort=True)
    relaxed = prompt("relaxed", 500, at_s=100.0)
    urgent = prompt("urgent", 500, at_s=96.0)
    first = {
        name: next(iter(SlosServe().step(replica([], [offline, job], 2000, now_s=100.0), None)[0].tokens))
        for name, job in (("relaxed", relaxed), ("urgent", urgent._replace(due_s=100.2)))
    }
    assert first == {"relaxed": "offline", "urgent": "urgent"}
