"""A fleet split by phase: where first tokens come from, what the KV transfer costs, and queues."""

from dataclasses import replace

import pytest
from penstock_core.domain.replica_view import Limits
from penstock_core.domain.slo import Slo, Tier
from penstock_core.timing.builtin_models import UnknownTimeModel, builtin
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import Arrival, FirstVerdict, Fleet, SimulatedOutcome
from penstock_simulator.simulation.disaggregated.distserve import RATIOS, Ratio, simulate_distserve
from penstock_simulator.simulation.disaggregated.kv_transfer import NVLINK_BYTES_PER_S
from penstock_simulator.simulation.disaggregated.phase_gpu import DecodeGpu

BUILTIN = builtin("slos-serve-opt-6.7b-a100")
MODEL = BUILTIN.model
FLEET = Fleet(
    policy="vllm",
    model=MODEL,
    kv_tokens=8000,
    tiers={
        "chat": Tier("chat", Slo(ttft_s=1.0, tpot_s=0.1)),
        "offline": Tier("offline", best_effort=True),
    },
    default_tier="chat",
    truth=TruthKind.EXACT,
    limits=Limits(2048, 64),
)
ONE_EACH = Ratio(1, 1)


def ask(name: str, prompt: int = 400, answer: int = 5, at_s: float = 0.0, tier: str = "chat") -> Arrival:
    return Arrival(name, at_s, tier, prompt, answer)


def served(
    arrivals: list[Arrival], fleet: Fleet = FLEET, ratio: Ratio = ONE_EACH
) -> dict[str, SimulatedOutcome]:
    return {outcome.id: outcome for outcome in simulate_distserve(fleet, ratio, arrivals, seed=0)}


def test_one_gpu_generates_the_first_token_and_another_the_rest() -> None:
    outcome = served([ask("a", 400, 5)])["a"]
    ttft_s = FLEET.hop_latency_s + MODEL.prefill_seconds(400)
    transfer_s = 400 * BUILTIN.kv_token_bytes / NVLINK_BYTES_PER_S
    decode_s = sum(MODEL.seconds(BatchWork(1, 401 + i)) for i in range(4))
    assert outcome.ttft_s == pytest.approx(ttft_s)
    assert outcome.e2e_s == pytest.approx(ttft_s + transfer_s + decode_s)
    assert (outcome.replica, outcome.verdict, outcome.met) == ("p0+d0", FirstVerdict.ADMITTED, True)


def test_an_answer_of_one_token_is_not_transferred() -> None:
    outcome = served([ask("a", answer=1)])["a"]
    assert (outcome.replica, outcome.output_tokens, outcome.e2e_s) == ("p0", 1, outcome.ttft_s)


def test_decodes_do_not_wait_for_prompts() -> None:
    alone = served([ask("a", answer=40)])["a"]
    crowded = served([ask("a", answer=40), *[ask(f"b{i}", 2000, 1, at_s=0.2) for i in range(9)]])["a"]
    assert crowded.tpot_s == alone.tpot_s


def test_whole_prompts_are_batched_in_order_of_arrival_within_the_budget() -> None:
    outcomes = served([ask(name, 1000, 1) for name in "abc"])
    batch_s = MODEL.prefill_seconds(2000)
    assert outcomes["a"].ttft_s == outcomes["b"].ttft_s == pytest.approx(FLEET.hop_latency_s + batch_s)
    assert outcomes["c"].ttft_s == pytest.approx(FLEET.hop_latency_s + batch_s + MODEL.prefill_seconds(1000))


def test_requests_go_to_the_least_loaded_replica() -> None:
    outcomes = served(
        [ask("a", 2000, 40), ask("b", 100, 40), ask("c", 100, 40), ask("d", 100, 40, at_s=5.0)],
        ratio=Ratio(2, 2),
    )
    assert [outcomes[name].replica.split("+")[0] for name in "abcd"] == ["p0", "p1", "p1", "p0"]
    assert {outcomes[name].replica.split("+")[1] for name in "bc"} == {"d0", "d1"}


def test_kv_waits_for_free_blocks_in_order() -> None:
    """There is none for b beside a, and c could be done long before."""
    large, small = [ask("a", 4000, 400), ask("b", 4200, 50, at_s=0.5)], ask("c", 16, 50, at_s=1.0)
    fleet = replace(FLEET, limits=Limits(8192, 64))
    ends_s = {o.id: o.arrival_s + (o.e2e_s or 0.0) for o in served([*large, small], fleet).values()}
    assert ends_s["a"] < min(ends_s["b"], ends_s["c"])
    without_b = served([large[0], small], fleet)
    assert 1.0 + (without_b["c"].e2e_s or 0.0) < ends_s["a"]


def test_a_decode_gpu_out_of_memory_recomputes_the_last_request() -> None:
    outcomes = served([ask("a", 3600, 600), ask("b", 3600, 600)], replace(FLEET, limits=Limits(8192, 64)))
    assert {outcome.output_tokens for outcome in outcomes.values()} == {600}
    assert (outcomes["b"].e2e_s or 0.0) > (outcomes["a"].e2e_s or 0.0) + 1.0


def test_slots_bound_the_decodes_that_run_together() -> None:
    outcomes = served([ask("a", 100, 30), ask("b", 100, 30)], replace(FLEET, limits=Limits(2048, 1)))
    assert (outcomes["b"].tpot_s or 0.0) > 1.8 * (outcomes["a"].tpot_s or 0.0)


def test_a_request_larger_than_any_gpu_fails() -> None:
    outcome = served([ask("a", 7990, 100), ask("b")])
    assert (outcome["a"].verdict, outcome["a"].met) == (FirstVerdict.FAILED, False)
    assert outcome["b"].met


def test_best_effort_has_its_verdict_and_the_same_service() -> None:
    outcome = served([ask("a", tier="offline")])["a"]
    assert (outcome.verdict, outcome.output_tokens) == (FirstVerdict.BEST_EFFORT, 5)


def test_a_session_sends_its_next_request_when_the_last_has_ended() -> None:
    stages = [replace_session(ask(f"s{i}", at_s=1.0), i) for i in range(3)]
    outcomes = served(stages)
    for i in range(2):
        here, following = outcomes[f"s{i}"], outcomes[f"s{i + 1}"]
        assert following.arrival_s == pytest.approx(here.arrival_s + (here.e2e_s or 0.0))


def replace_session(arrival: Arrival, stage: int) -> Arrival:
    return arrival._replace(session="s", stage=stage)


def test_decodes_speculate_if_the_fleet_has_a_drafter() -> None:
    drafting = replace(FLEET, speculation=Speculation(3, 0.9))
    faster, plain = served([ask("a", answer=200)], drafting)["a"], served([ask("a", answer=200)])["a"]
    assert faster.output_tokens == 200
    assert (faster.tpot_s or 1.0) < 0.5 * (plain.tpot_s or 0.0)


@pytest.mark.parametrize("ratio", RATIOS, ids=str)
def test_all_requests_are_served_and_a_seed_reproduces_the_result(ratio: Ratio) -> None:
    fleet = replace(FLEET, truth=TruthKind.MEASURED)
    arrivals = [ask(str(i), 100 + 37 * i % 1500, 1 + i * 7 % 90, at_s=i * 0.05) for i in range(120)]
    outcomes = list(simulate_distserve(fleet, ratio, iter(arrivals), seed=3))
    assert sorted(o.id for o in outcomes) == sorted(a.id for a in arrivals)
    assert {o.id: o.output_tokens for o in outcomes} == {a.id: a.output_tokens for a in arrivals}
    assert outcomes == list(simulate_distserve(fleet, ratio, iter(arrivals), seed=3))
    assert outcomes != list(simulate_distserve(fleet, ratio, iter(arrivals), seed=4))


def test_an_engine_of_unknown_kv_size_is_refused() -> None:
    with pytest.raises(UnknownTimeModel):
        served([ask("a")], replace(FLEET, model=replace(MODEL, name="mine")))


@pytest.mark.parametrize(("speculation", "tokens"), [(None, 64), (Speculation(3, 0.7), 256)])
def test_a_decode_gpus_batch_has_room_for_every_slots_token_and_drafts(
    speculation: Speculation | None, tokens: int
) -> None:
    fleet = replace(FLEET, limits=Limits(2, 64), speculation=speculation)
    assert DecodeGpu("decode", fleet, 0)._engine.view(0.0, 0.0, MODEL).limits.batch_tokens == tokens
    ample = replace(fleet, limits=Limits(1000, 64))
    assert DecodeGpu("decode", ample, 0)._engine.view(0.0, 0.0, MODEL).limits.batch_tokens == 1000
