"""The bound is one: no policy passes it, no schedule of a small instance does, and no price breaks it.

And it is not an idle one: where the optimum of the relaxation can be written down, it is that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.replica_view import Limits
from penstock_core.domain.slo import Judge, Slo, Tier
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import Term, TimeModel
from penstock_simulator.arrival import Arrival
from penstock_simulator.bounds import BoundSetting, bound, bound_setting, capacity_bound, linear_program
from penstock_simulator.bounds.linear_program import LinearProgram
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.scenarios import arrivals, scenario
from penstock_simulator.scenarios.recording import RecordingWindow
from penstock_simulator.scenarios.request_sources import pairs
from penstock_simulator.scenarios.scenario import RequestStream
from penstock_simulator.simulation import Fleet, LengthKnowledge, simulate

from examples import examples

MODEL = TimeModel("line", (Term(100e-6, 20e-3, 1e-3), Term(120e-6, 5e-3, 3e-3)))
TIERS = {
    tier.name: tier
    for tier in (
        Tier("chat", Slo(ttft_slowdown=5, tpot_s=0.1, judge=Judge.WINDOW)),
        Tier("strict", Slo(ttft_slowdown=3, tpot_s=0.05, judge=Judge.MAX)),
        Tier("whole", Slo(ttft_s=1.0, e2e_s=6.0)),
        Tier("mean", Slo(ttft_s=0.4, tpot_s=0.06)),
        Tier("think", Slo(ttft_s=1.0, tpot_s=0.05, answer_tpot_s=0.1, judge=Judge.WINDOW)),
        Tier("first", Slo(ttft_s=1.0)),
        Tier("free", best_effort=True),
    )
}
SETTING = BoundSetting(MODEL, TIERS, kv_tokens=8_000)


def prompts(*sizes: int, at_s: float = 0.0, tier: str = "first") -> list[Arrival]:
    return [Arrival(f"p{i}", at_s, tier, tokens, 1) for i, tokens in enumerate(sizes)]


def chats(count: int, rate_rps: float, seed: int, tiers: Sequence[str]) -> Iterator[Arrival]:
    random, at_s = Random(seed), 0.0
    for i in range(count):
        at_s += random.expovariate(0.6 * rate_rps) if random.random() < 0.6 else 0.0
        prompt, output = random.randint(20, 1200), max(1, round(random.expovariate(1 / 60)))
        yield Arrival(f"c{i}", at_s, random.choice(tiers), prompt, output, output // 2)


def fleet(policy: str, setting: BoundSetting) -> Fleet:
    return Fleet(
        policy=policy,
        model=setting.model,
        kv_tokens=setting.kv_tokens,
        tiers=setting.tiers,
        default_tier="chat",
        replicas=setting.replicas,
        limits=setting.limits,
        speculation=setting.speculation,
        truth=TruthKind.EXACT,
        lengths=LengthKnowledge.KNOWN,
    )


LOADS = {
    "chat, memory binds": (SETTING, ("chat",)),
    "speculating": (replace(SETTING, speculation=Speculation(4, 0.7)), ("chat", "strict")),
    "strict, few slots": (replace(SETTING, limits=Limits(batch_tokens=512, running=8)), ("strict", "mean")),
    "thinking, memory ample": (replace(SETTING, kv_tokens=400_000), ("think",)),
    "every kind": (SETTING, ("chat", "strict", "whole", "mean", "think", "first", "free")),
    "attention": (
        replace(SETTING, model=replace(MODEL, context_token_s=1e-6, prefill_work_s=3e-8, overhead_s=1e-3)),
        ("chat", "whole"),
    ),
    "two replicas": (replace(SETTING, replicas=2), ("chat", "strict")),
}


@pytest.mark.parametrize("load", LOADS)
def test_no_policy_exceeds_the_bound(load: str) -> None:
    setting, tiers = LOADS[load]
    workload = list(chats(30, 10.0 * setting.replicas, 1, tiers))
    most = bound(workload, setting) * len(workload)
    for policy in ("slos-serve", "vllm"):
        met = sum(outcome.met for outcome in simulate(fleet(policy, setting), workload, 1))
        assert met <= most + 1e-6, policy


def test_the_bound_of_a_lone_request_on_an_idle_replica_is_one() -> None:
    assert bound(prompts(1000), SETTING) == pytest.approx(1.0)
    assert bound([Arrival("c", 0.0, "chat", 1000, 100)], SETTING) == pytest.approx(1.0)


def test_prompts_due_together_share_the_time_until_then() -> None:
    """With a share x of each accepted, tokens and one iteration: x (n · 120 µs · p + 5 ms) = 1 s."""
    setting = replace(SETTING, kv_tokens=100_000, limits=Limits(batch_tokens=20_000))
    most = bound(prompts(*[3000] * 6), setting)
    assert most == pytest.approx(1.0 / (6 * 3000 * 120e-6 + 5e-3), abs=1e-5)


def test_the_bound_serves_the_cheapest_requests() -> None:
    few = bound(prompts(*[400] * 10, *[4000] * 10), SETTING)
    assert 0.5 < few < 0.65


def first_tokens_in_time(sizes: Sequence[tuple[float, int]]) -> int:
    """Most prompts of (arrival, tokens) done within a second: all sets, all cuts into whole iterations."""
    for count in range(len(sizes), 0, -1):
        if any(_feasible(0.0, chosen) for chosen in combinations(sorted(sizes), count)):
            return count
    return 0


def _feasible(now_s: float, waiting: Sequence[tuple[float, int]]) -> bool:
    if not waiting:
        return True
    for count in range(1, len(waiting) + 1):
        batch = waiting[:count]
        begin_s = max(now_s, batch[-1][0])
        tokens = sum(size for _, size in batch)
        end_s = begin_s + max(100e-6 * tokens + 20e-3, 120e-6 * tokens + 5e-3)
        if end_s <= batch[0][0] + 1.0 and _feasible(end_s, waiting[count:]):
            return True
    return False


@given(st.lists(st.tuples(st.floats(0, 1.5), st.integers(1, 7000)), min_size=1, max_size=5))
@examples(30)
def test_no_schedule_of_a_small_instance_exceeds_the_bound(sizes: list[tuple[float, int]]) -> None:
    workload = [Arrival(f"p{i}", at_s, "first", tokens, 1) for i, (at_s, tokens) in enumerate(sizes)]
    most = bound(workload, replace(SETTING, kv_tokens=100_000)) * len(sizes)
    assert first_tokens_in_time(sizes) <= most + 1e-6


@pytest.mark.parametrize(
    "better",
    [
        {"kv_tokens": 16_000},
        {"replicas": 2},
        {"speculation": Speculation(4, 0.8)},
        {"model": replace(MODEL, scale=0.7)},
    ],
    ids=lambda better: next(iter(better)),
)
def test_a_better_machine_never_lowers_the_bound(better: dict[str, object]) -> None:
    workload, scarce = list(chats(60, 30.0, 3, ("chat",))), replace(SETTING, kv_tokens=3_000)
    assert bound(workload, replace(scarce, **better)) > bound(workload, scarce) + 0.01  # type: ignore[arg-type]


def test_memory_limits_the_number_of_concurrent_answers() -> None:
    workload = [Arrival(f"c{i}", 0.0, "chat", 200, 200) for i in range(60)]
    loose = replace(
        SETTING, tiers=TIERS | {"chat": Tier("chat", Slo(ttft_s=8.0, tpot_s=0.05, judge=Judge.MAX))}
    )
    ample, scarce = (
        bound(workload, replace(loose, kv_tokens=100_000)),
        bound(workload, replace(loose, kv_tokens=2_000)),
    )
    assert ample == pytest.approx(1.0)
    assert scarce < 0.6


def test_the_bound_is_zero_for_impossible_and_one_for_unconstrained_requests() -> None:
    assert bound(prompts(9_000, tier="chat"), SETTING) == pytest.approx(0.0, abs=1e-6)
    assert bound(prompts(9_000, tier="free"), SETTING) == 1.0
    half = [*prompts(9_000, tier="chat"), Arrival("f", 0.0, "free", 10, 10)]
    assert bound(half, SETTING) == pytest.approx(0.5, abs=1e-6)
    with pytest.raises(ValueError, match="no arrivals"):
        bound([], SETTING)


def test_a_session_counts_once_and_fails_with_any_of_its_stages() -> None:
    stages = [Arrival(f"s.{i}", 0.0, "whole", tokens, 1, 0, "s", i) for i, tokens in enumerate((500, 90_000))]
    setting = replace(SETTING, kv_tokens=100_000)
    assert bound([*stages, *prompts(100)], setting) < 0.9
    assert bound(stages[:1], setting) == pytest.approx(1.0)


@given(st.integers(0, 10_000))
@examples(20)
def test_any_dual_prices_give_an_upper_bound(seed: int) -> None:
    random = np.random.default_rng(seed)
    program, chosen = LinearProgram(), random.random(6)
    columns = program.columns(np.ones(6), gain=1.0)
    factors = random.normal(size=(4, 6))
    program.put(program.at_most(factors @ chosen)[:, None], columns[None, :], factors)
    program.put(program.equal([float(chosen.sum())])[:, None], columns[None, :], np.ones((1, 6)))
    exact = program.upper_bound()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_program, "_prices", lambda *_: random.normal(size=5))
        assert program.upper_bound() >= exact - 1e-6
    assert exact == pytest.approx(chosen.sum(), abs=1e-6)


def test_the_capacity_is_the_rate_at_which_the_bound_crosses_the_attainment() -> None:
    chat = scenario("chatbot")
    small = replace(
        chat,
        streams=(RequestStream(RecordingWindow("azure-conv", 0, 10, 10), pairs("chat", "azure-conv", 2048)),),
    )
    rate_rps = capacity_bound(small, 0.9, relative_error=0.05, start_rps=12.0)

    def share(at_rps: float) -> float:
        return bound(arrivals(small, at_rps, 0), bound_setting(small))

    assert share(rate_rps) < 0.9 <= share(rate_rps / 1.05)


def test_coefficients_of_one_entry_add_up() -> None:
    program = LinearProgram()
    column, row = program.columns([1.0], gain=1.0), program.at_most([1.0])
    for _ in range(2):
        program.put(row, column, 2.0)
    assert program.upper_bound() == pytest.approx(0.25, abs=1e-6)
