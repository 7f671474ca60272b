"""Schedulers with a queue: which request each of them serves, step by step, on small replicas."""

from dataclasses import replace

import pytest
from penstock_core.domain.policy import Knobs, Step
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.domain.verdict import Admitted, BestEffort
from penstock_core.policies import build
from penstock_core.policies.accelgen.policy import AccelGen
from penstock_core.policies.annealing.policy import Annealing
from penstock_core.policies.fastserve import FastServe
from penstock_core.policies.fcfs import Fcfs
from penstock_core.policies.qoserve import QoServe
from penstock_core.policies.sola.policy import Sola
from penstock_core.policies.vllm import Vllm
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork
from replica_views import kv_cache

MODEL = time_model("slos-serve-opt-6.7b-a100")
NAMES = ("vllm", "vllm-legacy", "sarathi", "sjf", "fastserve", "orca", "fcfs", "qoserve", "fluidserve")


def prompt(name: str, tokens: int = 100, *, done: int = 0, answer: int = 50, most: int = 500) -> Job:
    job = new_job(Request(name, "tier", 0.0, tokens, most, Targets(5.0, 0.1)), answer, best_effort=False)
    return advance(job, done, 0, 0.0) if done else job


def decode(name: str, context: int = 100) -> Job:
    return advance(prompt(name, context), context, 1, 0.0)


def replica(
    running: list[Job],
    waiting: list[Job],
    *,
    free_blocks: int = 1000,
    limits: Limits | None = None,
    drafts: int = 0,
) -> ReplicaView:
    kv = kv_cache(running, free_blocks)
    speculation = Speculation(drafts, 0.7) if drafts else None
    return ReplicaView(0.0, 0.0, tuple(running), tuple(waiting), kv, limits or Limits(), MODEL, speculation)


def step_of(name: str, view: ReplicaView) -> Step:
    policy = build(name)
    return policy.step(view, policy.start())[0]


@pytest.mark.parametrize("name", NAMES)
def test_baselines_reject_no_request(name: str) -> None:
    offline = prompt("c")._replace(best_effort=True)
    crowd = replica([decode(f"d{i}") for i in range(50)], [prompt(f"w{i}", 2000) for i in range(50)])
    verdicts = build(name).admit(crowd, [prompt("a"), prompt("b"), offline])
    assert [type(verdict) for verdict in verdicts] == [Admitted, Admitted, BestEffort]


UNDER_WAY = prompt("b", 500, done=100)
STEPS = {
    "sarathi: decodes go before a prompt that was started earlier": (
        "sarathi",
        replica([UNDER_WAY, decode("a")], [prompt("c")], limits=Limits(batch_tokens=64)),
        {"a": 1, "b": 63},
        (),
    ),
    "sarathi: the started prompt goes before new ones, and they fill the chunk": (
        "sarathi",
        replica([UNDER_WAY, decode("a")], [prompt("c"), prompt("d")], limits=Limits(batch_tokens=512)),
        {"a": 1, "b": 400, "c": 100, "d": 11},
        (),
    ),
    "sarathi: a prompt in progress is preempted for decodes, and no request starts": (
        "sarathi",
        replica([UNDER_WAY, decode("a", 96)], [prompt("c", 16)], free_blocks=0),
        {"a": 1},
        ("b",),
    ),
    "vllm-legacy: waiting prompts alone, no decodes": (
        "vllm-legacy",
        replica([decode("a")], [prompt("b"), prompt("c")]),
        {"b": 100, "c": 100},
        (),
    ),
    "vllm-legacy: prompts go whole or wait": (
        "vllm-legacy",
        replica([decode("a")], [prompt("b"), prompt("c")], limits=Limits(batch_tokens=150)),
        {"b": 100},
        (),
    ),
    "vllm-legacy: a prompt longer than any batch goes in chunks, alone": (
        "vllm-legacy",
        replica([decode("a")], [prompt("b", 400), prompt("c")], limits=Limits(batch_tokens=150)),
        {"b": 150},
        (),
    ),
    "vllm-legacy: decodes while no prompt fits beside the watermark": (
        "vllm-legacy",
        replica([decode("a", 32_000), decode("b")], [prompt("c", 160)], free_blocks=20),
        {"a": 1, "b": 1},
        (),
    ),
    "vllm-legacy: the watermark is nothing to an idle replica": (
        "vllm-legacy",
        replica([], [prompt("c", 16_000)], free_blocks=1000, limits=Limits(batch_tokens=20_000)),
        {"c": 16_000},
        (),
    ),
    "sjf: of those waiting, the least work first": (
        "sjf",
        replica([decode("a")], [prompt("b", answer=300), prompt("c", 900, answer=6), prompt("d", answer=5)]),
        {"a": 1, "d": 100, "c": 900, "b": 100},
        (),
    ),
    "sjf: a long prompt can outweigh a longer answer": (
        "sjf",
        replica([], [prompt("b", 6000, answer=10), prompt("c", 10, answer=20)]),
        {"c": 10, "b": 6000},
        (),
    ),
    "orca: no request starts whose longest answer might not fit": (
        "orca",
        replica([decode("a")], [prompt("b", most=60), prompt("c", most=1000)], free_blocks=100),
        {"a": 1, "b": 100},
        (),
    ),
    "orca: no request is overtaken": (
        "orca",
        replica([decode("a")], [prompt("c", most=1000), prompt("b", most=60)], free_blocks=50),
        {"a": 1},
        (),
    ),
    "orca: no request starts without a slot": (
        "orca",
        replica([decode(f"a{i}") for i in range(7)], [prompt("b"), prompt("c")], limits=Limits(running=8)),
        {f"a{i}": 1 for i in range(7)} | {"b": 100},
        (),
    ),
    "orca: whole prompts": (
        "orca",
        replica([decode("a")], [prompt("b"), prompt("c")], limits=Limits(batch_tokens=200)),
        {"a": 1, "b": 100},
        (),
    ),
    "orca: alone, one may ask for more than there is": (
        "orca",
        replica([], [prompt("b", most=100_000), prompt("c")], free_blocks=50),
        {"b": 100},
        (),
    ),
    "fcfs: a new batch is what fits at the last token of all, prompts first": (
        "fcfs",
        replica([], [prompt("a"), prompt("b"), prompt("c")], free_blocks=20),
        {"a": 100, "b": 100},
        (),
    ),
    "fcfs: one at least, whatever was predicted": (
        "fcfs",
        replica([], [prompt("a", answer=5000), prompt("b")], free_blocks=50),
        {"a": 100},
        (),
    ),
    "fcfs: no more than there are slots": (
        "fcfs",
        replica([], [prompt("a"), prompt("b"), prompt("c")], limits=Limits(running=2)),
        {"a": 100, "b": 100},
        (),
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_each_baseline_serves_in_its_own_order(case: str) -> None:
    name, view, tokens, preempt = STEPS[case]
    step = step_of(name, view)
    assert list(step.tokens.items()) == list(tokens.items())
    assert step.preempt == preempt


@pytest.mark.parametrize(("answer", "first"), [(31, "answers"), (33, "prompts")])
def test_sjf_weighs_a_prompt_by_the_batch_time_that_it_adds(answer: int, first: str) -> None:
    """A decode step takes 24.9 ms and 1,024 more prompt tokens take 70 ms: 12,000 of them 33 steps."""
    waiting = [prompt("prompts", 11_654, answer=1), prompt("answers", 1, answer=answer + 1)]
    view = replica([], waiting, limits=Limits(batch_tokens=20_000))
    assert next(iter(step_of("sjf", view).tokens)) == first


def test_orca_counts_running_requests_at_their_longest() -> None:
    """The one that runs may come to 600 tokens, 38 blocks; the new one to 37 of the other 37."""
    running = [decode("a")]
    fits = replica(running, [prompt("b", 92, most=500)], free_blocks=68)
    assert set(step_of("orca", fits).tokens) == {"a", "b"}
    assert set(step_of("orca", replica(running, [prompt("b", 93, most=500)], free_blocks=68)).tokens) == {"a"}


def test_fcfs_fills_memory_to_the_last_block_that_answers_will_need() -> None:
    """Two prompts of 110 with answers of 50 come to ten blocks each."""
    waiting = [prompt("a", 110), prompt("b", 110)]
    assert set(step_of("fcfs", replica([], waiting, free_blocks=20)).tokens) == {"a", "b"}
    assert set(step_of("fcfs", replica([], waiting, free_blocks=19)).tokens) == {"a"}


@pytest.mark.parametrize(("free_blocks", "started"), [(9, True), (8, False)])
def test_vllm_legacy_leaves_a_hundredth_of_the_blocks_free(free_blocks: int, started: bool) -> None:
    view = replica([decode("a", 192 * 16)], [prompt("c", 112)], free_blocks=free_blocks)
    assert view.kv.total_blocks // 100 == 2
    assert (list(step_of("vllm-legacy", view).tokens) == ["c"]) is started


def test_a_first_token_is_predicted_behind_all_prompts_and_the_batch_under_way() -> None:
    """Each new request waits for those before it; a decode and a best-effort request count as they are."""
    there = replica([decode("d", 300), UNDER_WAY], [prompt("w", 200)])
    model = replace(MODEL, context_token_s=1e-5)
    view = replace(there, now_s=5.0, busy_until_s=5.5, model=model)
    new = [prompt("a", 50), prompt("o", 60)._replace(best_effort=True), prompt("b", 70)]
    first, offline, second = build("vllm").admit(view, new)
    assert isinstance(first, Admitted) and isinstance(second, Admitted) and offline == BestEffort()

    def batch_s(tokens: int) -> float:
        return model.seconds(BatchWork(1 + tokens, 301))

    assert first.ttft_predicted_s == pytest.approx(0.5 + batch_s(400 + 200 + 50))
    assert second.ttft_predicted_s == pytest.approx(0.5 + batch_s(400 + 200 + 50 + 60 + 70))
    assert (first.tpot_predicted_s, second.tpot_predicted_s) == pytest.approx((batch_s(3), batch_s(5)))
    (late,) = build("vllm").admit(replace(view, busy_until_s=4.0), new[:1])
    assert isinstance(late, Admitted)
    assert late.ttft_predicted_s == pytest.approx(batch_s(650))


def test_knobs_have_the_documented_defaults() -> None:
    assert Knobs() == Knobs(aging_s=30.0)
    assert Sola() == Sola(window=10, patience=0.25, surplus_s=0.060, aging_s=30.0)
    assert AccelGen() == AccelGen(gamma_s=0.75, reading_tbt_s=0.1875, aging_s=30.0)
    assert Annealing() == Annealing(window=16, spread=0.0, aging_s=30.0)
    assert FastServe() == FastServe(queues=5, aging_s=30.0)
    assert QoServe() == QoServe(work_weight=1.0, most_prompt_tokens=1024)
    assert Limits() == Limits(batch_tokens=8192, running=256)


def test_no_request_joins_a_running_batch_of_fcfs() -> None:
    policy = Fcfs()
    first, members = policy.step(replica([], [prompt("a"), prompt("b")]), policy.start())
    assert first.tokens == {"a": 100, "b": 100}
    second, members = policy.step(replica([decode("a"), decode("b")], [prompt("c")]), members)
    assert second.tokens == {"a": 1, "b": 1}
    third, members = policy.step(replica([decode("b")], [prompt("c")]), members)
    assert third.tokens == {"b": 1}
    fourth, _ = policy.step(replica([], [prompt("c")]), members)
    assert fourth.tokens == {"c": 100}


def test_fcfs_takes_a_member_that_lost_its_memory_before_others_start() -> None:
    view = replica([], [prompt("a"), prompt("b")])
    assert Fcfs().step(view, frozenset(["a"]))[0].tokens == {"a": 100}


def test_fcfs_computes_all_prompts_of_a_batch_before_decoding() -> None:
    limits = Limits(batch_tokens=150)
    step, _ = Fcfs().step(replica([decode("a")], [prompt("b"), prompt("c")], limits=limits), frozenset("ab"))
    assert step.tokens == {"b": 100}


def test_decodes_continue_if_a_chunked_prompt_runs_out_of_blocks() -> None:
    """Decodes took the blocks that were free when it started."""
    view = replica([prompt("b", 500, done=160), decode("a", 100)], [prompt("c", 16)], free_blocks=0)
    step = step_of("vllm-legacy", view)
    assert (dict(step.tokens), step.preempt) == ({"a": 1}, ())


def test_every_decode_drafts_as_many_tokens_as_the_drafter_is_set_to() -> None:
    step = Vllm().step(replica([decode("a"), decode("b")], [prompt("c")], drafts=3), None)[0]
    assert step.tokens == {"a": 1, "b": 1, "c": 100}
    assert step.drafts == {"a": 3, "b": 3}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "vllm-legacy"])
def test_every_baseline_drafts(name: str) -> None:
    policy = build(name)
    memory = frozenset("ab") if name == "fcfs" else policy.start()
    step, _ = policy.step(replica([decode("a"), decode("b")], [], drafts=4), memory)
    assert step.drafts == {"a": 4, "b": 4}


def test_drafts_are_given_in_order_until_tokens_run_out() -> None:
    view = replica([decode("a"), decode("b"), decode("c")], [], drafts=4, limits=Limits(batch_tokens=8))
    step = Vllm().step(view, None)[0]
    assert (step.tokens, step.drafts) == ({"a": 1, "b": 1}, {"a": 4, "b": 2})


def test_no_request_is_preempted_for_draft_tokens() -> None:
    """One block is free: a's token takes it, and a's drafts fit into it too; b's token fits into its own."""
    view = replica([decode("a", 96), decode("b", 94)], [], drafts=4, free_blocks=1)
    step = Vllm().step(view, None)[0]
    assert (step.tokens, step.drafts, step.preempt) == ({"a": 1, "b": 1}, {"a": 4, "b": 1}, ())


def test_a_prompt_does_not_draft() -> None:
    assert Vllm().step(replica([UNDER_WAY], [], drafts=4), None)[0].drafts == {}
