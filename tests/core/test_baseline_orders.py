"""Schedulers that keep a queue: whom each of them serves, step by step, on small replicas."""

import pytest
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.domain.verdict import Admitted, BestEffort
from penstock_core.policies import build
from penstock_core.policies.fcfs import Fcfs
from penstock_core.policies.vllm import Vllm
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation

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
    held = sum(-(-job.computed_tokens // 16) for job in running)
    kv = KvCache(held + free_blocks, free_blocks, 16)
    speculation = Speculation(drafts, 0.7) if drafts else None
    return ReplicaView(0.0, 0.0, tuple(running), tuple(waiting), kv, limits or Limits(), MODEL, speculation)


def step_of(name: str, view: ReplicaView) -> Step:
    policy = build(name)
    return policy.step(view, policy.start())[0]


@pytest.mark.parametrize("name", NAMES)
def test_baselines_refuse_nobody(name: str) -> None:
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
    "sarathi: the prompt under way goes before newcomers, and they fill the chunk": (
        "sarathi",
        replica([UNDER_WAY, decode("a")], [prompt("c"), prompt("d")], limits=Limits(batch_tokens=512)),
        {"a": 1, "b": 400, "c": 100, "d": 11},
        (),
    ),
    "sarathi: a prompt under way gives its blocks to decodes, and nobody starts": (
        "sarathi",
        replica([UNDER_WAY, decode("a", 96)], [prompt("c", 16)], free_blocks=0),
        {"a": 1},
        ("b",),
    ),
    "vllm-legacy: waiting prompts alone, decodes stand still": (
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
    "orca: nobody starts whose longest answer might not fit": (
        "orca",
        replica([decode("a")], [prompt("b", most=60), prompt("c", most=1000)], free_blocks=100),
        {"a": 1, "b": 100},
        (),
    ),
    "orca: nobody is overtaken": (
        "orca",
        replica([decode("a")], [prompt("c", most=1000), prompt("b", most=60)], free_blocks=50),
        {"a": 1},
        (),
    ),
    "orca: nobody starts without a slot": (
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
    "fcfs: a new batch is what fits at everybody's last token, prompts first": (
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
    "fcfs: no more than there are seats": (
        "fcfs",
        replica([], [prompt("a"), prompt("b"), prompt("c")], limits=Limits(running=2)),
        {"a": 100, "b": 100},
        (),
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_each_serves_in_its_own_order(case: str) -> None:
    name, view, tokens, preempt = STEPS[case]
    step = step_of(name, view)
    assert list(step.tokens.items()) == list(tokens.items())
    assert step.preempt == preempt


def test_fcfs_lets_nobody_join_a_batch_that_runs() -> None:
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


def test_fcfs_computes_the_prompts_of_a_batch_before_any_of_it_decodes() -> None:
    limits = Limits(batch_tokens=150)
    step, _ = Fcfs().step(replica([decode("a")], [prompt("b"), prompt("c")], limits=limits), frozenset("ab"))
    assert step.tokens == {"b": 100}


def test_a_prompt_in_chunks_that_ran_out_of_blocks_lets_decodes_go_on() -> None:
    """Decodes took the blocks that were free when it started."""
    view = replica([prompt("b", 500, done=160), decode("a", 100)], [prompt("c", 16)], free_blocks=0)
    step = step_of("vllm-legacy", view)
    assert (dict(step.tokens), step.preempt) == ({"a": 1}, ())


def test_every_decode_drafts_what_the_drafter_is_set_to() -> None:
    step = Vllm().step(replica([decode("a"), decode("b")], [prompt("c")], drafts=3), None)[0]
    assert step.tokens == {"a": 1, "b": 1, "c": 100}
    assert step.drafts == {"a": 3, "b": 3}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "vllm-legacy"])
def test_all_of_them_draft(name: str) -> None:
    policy = build(name)
    memory = frozenset("ab") if name == "fcfs" else policy.start()
    step, _ = policy.step(replica([decode("a"), decode("b")], [], drafts=4), memory)
    assert step.drafts == {"a": 4, "b": 4}


def test_drafts_stop_where_tokens_do_and_in_order() -> None:
    view = replica([decode("a"), decode("b"), decode("c")], [], drafts=4, limits=Limits(batch_tokens=8))
    step = Vllm().step(view, None)[0]
    assert (step.tokens, step.drafts) == ({"a": 1, "b": 1}, {"a": 4, "b": 2})


def test_nobody_gives_way_for_drafts() -> None:
    """One block is free: a's token takes it, and a's drafts fit into it too; b's token fits into its own."""
    view = replica([decode("a", 96), decode("b", 94)], [], drafts=4, free_blocks=1)
    step = Vllm().step(view, None)[0]
    assert (step.tokens, step.drafts, step.preempt) == ({"a": 1, "b": 1}, {"a": 4, "b": 1}, ())


def test_a_prompt_does_not_draft() -> None:
    assert Vllm().step(replica([UNDER_WAY], [], drafts=4), None)[0].drafts == {}
