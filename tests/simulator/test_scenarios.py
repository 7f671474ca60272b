"""The named workloads have the figures that they are named after, at any rate and in every sample."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, pstdev

import pytest
from penstock_core.timing.builtin_models import UnknownTimeModel, kv_cache_tokens
from penstock_simulator.scenarios import SCENARIOS, Scenario, UnknownScenario, arrivals, scenario
from penstock_simulator.scenarios.length_distribution import fitted

PAPER = ("chatbot", "coder", "summarizer", "toolllm", "reasoning", "mixed")

TABLE_4 = {  # mean, 99th percentile, deviation of prompts, and of answers beyond the first token
    "chatbot": ((763, 1591, 424), (266, 619, 160)),
    "coder": ((847, 2010, 617), (26, 232, 47)),
    "summarizer": ((1333, 1946, 444), (202, 1508, 234)),
    "toolllm": ((690, 2131, 356), (115, 362, 66)),
}


def figures(lengths: Sequence[int]) -> tuple[float, float, float]:
    return fmean(lengths), sorted(lengths)[int(0.99 * len(lengths))], pstdev(lengths)


def drawn(name: str, samples: int = 2) -> list[tuple[int, int, int]]:
    return [
        (arrival.prompt_tokens, arrival.output_tokens, arrival.thinking_tokens)
        for seed in range(samples)
        for arrival in arrivals(scenario(name), 2.0, seed)
    ]


@pytest.mark.parametrize("name", TABLE_4)
def test_lengths_equal_the_papers_table(name: str) -> None:
    prompts, outputs, _ = zip(*drawn(name), strict=True)
    prompt_figures, output_figures = TABLE_4[name]
    assert figures(prompts) == pytest.approx(prompt_figures, rel=0.05)
    # 15 % because of one of them: the 99th percentile of the coder's 559 answers lies in a gap of 30 tokens.
    assert figures([output - 1 for output in outputs]) == pytest.approx(output_figures, rel=0.15)


def test_reasoning_thinks_before_it_answers() -> None:
    prompts, outputs, thinking = zip(*drawn("reasoning"), strict=True)
    answers = [output - thought for output, thought in zip(outputs, thinking, strict=True)]
    assert figures(prompts) == pytest.approx((127, 421, 83), rel=0.02)
    assert figures(thinking) == pytest.approx((4693, 7297, 1442), rel=0.02)
    assert figures(answers) == pytest.approx((803, 1650, 280), rel=0.02)


@pytest.mark.parametrize("wanted", [(4693, 7297, 1442), (202, 1508, 234), (26, 232, 47), (1000, 1300, 100)])
def test_a_fitted_distribution_has_mean_percentile_and_deviation(wanted: tuple[int, int, int]) -> None:
    lengths = fitted(*wanted)
    assert figures([lengths.at((n + 0.5) / 4_000) for n in range(4_000)]) == pytest.approx(wanted, rel=0.015)
    assert lengths.at(0.0) >= 1


ONCE = [name for name, here in SCENARIOS.items() if here.sessions is None]
"""Scenarios without a closed loop."""


@pytest.mark.parametrize("name", ONCE)
def test_arrivals_are_in_order_at_the_given_rate(name: str) -> None:
    rate_rps = 0.3
    made = list(arrivals(scenario(name), rate_rps, seed=1))
    times_s = [arrival.arrival_s for arrival in made]
    sessions = {arrival.session or arrival.id for arrival in made}
    assert times_s == sorted(times_s)
    assert len(sessions) / times_s[-1] == pytest.approx(rate_rps, rel=0.05)
    assert len({arrival.id for arrival in made}) == len(made)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_arrival_has_a_tier_and_fits_the_engine(name: str) -> None:
    here = scenario(name)
    for arrival in arrivals(here, 1.0, seed=0):
        assert arrival.tier in here.tiers
        assert 0 < arrival.prompt_tokens + arrival.output_tokens <= here.kv_tokens
        assert len(arrival.hash_ids) <= -(-arrival.prompt_tokens // arrival.hash_id_tokens)
        assert arrival.output_tokens <= here.max_output_tokens
        assert 0 <= arrival.thinking_tokens <= arrival.output_tokens


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_seed_gives_its_sample(name: str) -> None:
    first, again, other = (list(arrivals(scenario(name), 1.0, seed)) for seed in (3, 3, 4))
    assert first == again
    assert [a.arrival_s for a in first] != [a.arrival_s for a in other]


def test_stretching_keeps_the_shape_of_a_burst() -> None:
    slow, fast = (gaps(scenario("coder"), rate) for rate in (0.5, 5.0))
    assert slow == pytest.approx([10 * gap for gap in fast], abs=1e-6)


def gaps(here: Scenario, rate_rps: float) -> list[float]:
    times_s = [arrival.arrival_s for arrival in arrivals(here, rate_rps, seed=0)]
    return [after - before for before, after in pairwise(times_s)]


def test_laps_continue_at_the_same_rate_with_new_lengths() -> None:
    one, two = (list(arrivals(scenario("mixed"), 2.0, seed=0, laps=laps)) for laps in (1, 2))
    second = two[len(one) :]
    assert len(two) == 2 * len(one)
    assert [a.arrival_s for a in second] == pytest.approx([a.arrival_s + len(one) / 2 for a in one])
    assert [a.output_tokens for a in second] != [a.output_tokens for a in one]


def test_tool_sessions_have_tight_loops_and_a_loose_end() -> None:
    made = list(arrivals(scenario("toolllm"), 1.0, seed=0))
    sizes = Counter(arrival.session or arrival.id for arrival in made).values()
    assert fmean(sizes) == pytest.approx(2.7, rel=0.03)
    assert pstdev(sizes) == pytest.approx(1.1, rel=0.05)
    stages = [arrival for arrival in made if arrival.session]
    assert {a.tier for a in stages if a.stage == 0} == {"tool"}
    assert {a.tier for a in made if not a.session} == {"tool-final"}
    last = {arrival.session: arrival.tier for arrival in stages}
    assert set(last.values()) == {"tool-final"}


def test_mixed_has_equal_uncorrelated_shares() -> None:
    made = list(arrivals(scenario("mixed"), 3.0, seed=0))
    shares = Counter(arrival.tier for arrival in made)
    assert len(set(shares.values())) == 1
    assert len({arrival.arrival_s for arrival in made}) > 0.95 * len(made)


def test_every_scenario_has_the_papers_settings() -> None:
    assert set(PAPER) <= set(SCENARIOS)
    opt = [scenario(name) for name in ("chatbot", "coder", "summarizer", "mixed")]
    assert {(s.time_model, s.kv_tokens) for s in opt} == {("slos-serve-opt-6.7b-a100", 43_296)}
    assert all(s.speculation is not None and s.speculation.acceptance == 0.7 for s in opt)
    assert scenario("toolllm").speculation is scenario("reasoning").speculation is None
    thinking = scenario("reasoning").tiers["reasoning"].slo
    assert (thinking.ttft_slowdown, thinking.tpot_s, thinking.answer_tpot_s) == (3.0, 0.05, 0.1)


def test_an_unknown_name_lists_the_known_scenarios() -> None:
    with pytest.raises(UnknownScenario, match="unknown scenario 'chat'; known: chatbot, coder"):
        scenario("chat")


def test_a_scenario_runs_on_another_engine_with_that_engines_speed_and_memory() -> None:
    own, other = scenario("coder"), scenario("coder@opt-13b-a100")
    assert (other.name, other.time_model) == ("coder@opt-13b-a100", "opt-13b-a100")
    assert other.kv_tokens == kv_cache_tokens("opt-13b-a100") != own.kv_tokens
    assert (other.tiers, other.streams, other.speculation) == (own.tiers, own.streams, own.speculation)
    assert list(arrivals(other, 1.0, 0)) == list(arrivals(own, 1.0, 0))
    with pytest.raises(UnknownTimeModel, match="no built-in time model is called 'gpu'"):
        scenario("coder@gpu")
    with pytest.raises(UnknownScenario, match="unknown scenario 'code'"):
        scenario("code@opt-13b-a100")
