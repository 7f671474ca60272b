"""The samples that published figures were measured on: the same requests, targets and engines as then.

A change here is a change of every table of capacities, which then has to be measured anew.
"""

from collections.abc import Iterator
from random import Random

import pytest
from penstock_core.domain.slo import Judge
from penstock_core.timing.speculation import Speculation
from penstock_simulator.scenarios import SCENARIOS, arrivals, scenario
from penstock_simulator.scenarios.length_distribution import deviation, fitted
from penstock_simulator.scenarios.recording import RecordedRequest, RecordingWindow, recording
from penstock_simulator.scenarios.request_sources import as_recorded, pairs, stratified, tool_sessions

SAMPLES = {
    ("chatbot", 0): (1561, 1187102, 417555, 0, 644189.682),
    ("chatbot", 1): (1561, 1194220, 417367, 0, 590529.482),
    ("coder", 0): (905, 767280, 24631, 0, 231883.154),
    ("coder", 1): (905, 774200, 24717, 0, 153003.011),
    ("summarizer", 0): (1561, 2074212, 317559, 0, 600871.932),
    ("summarizer", 1): (1561, 2104138, 317685, 0, 629944.732),
    ("toolllm", 0): (1194, 823860, 138503, 0, 145194.097),
    ("toolllm", 1): (1179, 813488, 136776, 0, 158832.931),
    ("reasoning", 0): (453, 57557, 2489890, 2126165, 50888.185),
    ("reasoning", 1): (568, 72117, 3121978, 2665837, 80822.01),
    ("mixed", 0): (2715, 2658470, 450909, 0, 1951193.046),
    ("mixed", 1): (2715, 2669648, 450972, 0, 1692180.152),
    ("arxiv", 0): (1561, 4007494, 454816, 0, 600871.932),
    ("arxiv", 1): (1561, 4037725, 455000, 0, 629944.732),
    ("mooncake", 0): (1486, 17332306, 295214, 0, 563460.312),
    ("mooncake", 1): (1631, 30351395, 163330, 0, 668479.608),
    ("servegen-reasoning", 0): (1511, 1972779, 1558415, 1262106, 570873.202),
    ("servegen-reasoning", 1): (1506, 1855287, 1551278, 1230727, 578540.196),
}
"""Scenario and seed -> requests; sums of prompts, answers, thinking, arrival times, at 2 requests/s."""


@pytest.mark.parametrize(("name", "seed"), SAMPLES)
def test_a_sample_of_a_scenario_equals_the_recorded_one(name: str, seed: int) -> None:
    made = list(arrivals(scenario(name), 2.0, seed))
    sums = [sum(lengths) for lengths in zip(*(arrival[3:6] for arrival in made), strict=True)]
    assert (len(made), *sums, round(sum(arrival.arrival_s for arrival in made), 3)) == SAMPLES[name, seed]


ONCE = [name for name, here in SCENARIOS.items() if here.sessions is None]
"""Scenarios without recorded sessions, which `test_scenario_sessions.py` tests."""


def test_every_scenario_has_its_sample() -> None:
    assert {name for name, _ in SAMPLES} == set(ONCE)


TIERS = {
    "chatbot": {"chat": (5.0, 0.1, None)},
    "coder": {"coder": (5.0, 0.05, None)},
    "summarizer": {"summary": (3.0, 0.1, None)},
    "toolllm": {"tool": (3.0, 0.05, None), "tool-loop": (3.0, 0.05, None), "tool-final": (3.0, 0.1, None)},
    "reasoning": {"reasoning": (3.0, 0.05, 0.1)},
    "mixed": {"chat": (5.0, 0.1, None), "coder": (5.0, 0.05, None), "summary": (3.0, 0.1, None)},
    "arxiv": {"summary": (3.0, 0.1, None)},
    "mooncake": {"long-context": (5.0, 0.1, None)},
    "servegen-reasoning": {"reasoning": (5.0, 0.05, 0.1)},
}
"""TTFT as a multiple of an idle prefill, TPOT, TPOT of the answer after thinking [SLOs-Serve, Table 3]."""

OPT = ("slos-serve-opt-6.7b-a100", 43_296, 2048, Speculation(10, 0.7))
ENGINES = {
    "chatbot": OPT,
    "coder": OPT,
    "summarizer": OPT,
    "toolllm": ("slos-serve-toolllama-7b-a100", 42_944, 4096, None),
    "reasoning": ("slos-serve-r1-distill-1.5b-a100", 1_131_760, 16_384, None),
    "mixed": OPT,
    "arxiv": ("llama-3-8b-a100", 426_784, 4096, None),
    "mooncake": ("llama-3-8b-a100", 426_784, 4096, None),
    "servegen-reasoning": ("llama-3-8b-a100", 426_784, 32_768, None),
}
"""Engine, KV tokens, longest answer, drafter."""


@pytest.mark.parametrize("name", ONCE)
def test_a_scenarios_targets_and_engine_equal_the_recorded_ones(name: str) -> None:
    here = scenario(name)
    slos = {tier.name: tier.slo for tier in here.tiers.values()}
    assert list(here.tiers) == list(slos)
    assert {tier: (slo.ttft_slowdown, slo.tpot_s, slo.answer_tpot_s) for tier, slo in slos.items()} == TIERS[
        name
    ]
    assert {slo.judge for slo in slos.values()} == {Judge.WINDOW}
    assert (here.time_model, here.kv_tokens, here.max_output_tokens, here.speculation) == ENGINES[name]


def test_a_window_wraps_around_its_period() -> None:
    """Sample 0 begins at the window's start, the others at other times; what is past its end is left out."""
    rows = [row for row in recording("azure-code") if row.arrival_s < 300]
    whole = RecordingWindow("azure-code", 0, 300, 300)
    assert whole.rows(0) == sorted(rows)
    for sample in (1, 2):
        shift_s = 300 * (sample * 0.6180339887498949 % 1.0)
        turned = sorted(row._replace(arrival_s=(row.arrival_s - shift_s) % 300) for row in rows)
        assert [row[1:] for row in whole.rows(sample)] == [row[1:] for row in turned]
        assert [row.arrival_s for row in whole.rows(sample)] == pytest.approx(
            [row.arrival_s for row in turned]
        )
    part = RecordingWindow("azure-code", 150, 100, 100).rows(0)
    assert [row.arrival_s + 150 for row in part] == pytest.approx(
        [row.arrival_s for row in rows if 150 <= row.arrival_s < 250]
    )


FITTED = {
    (4693, 7297, 1442): (8.616402366266442, 0.4760949043133833, [1, 1726, 4680, 7223, 7297, 7662, 8027]),
    (202, 1508, 234): (4.849557813299812, 0.9199237263616473, [1, 15, 129, 971, 1508, 1583, 1659]),
    (26, 232, 47): (1.9724815784559673, 2.5066658755046616, [1, 1, 6, 200, 232, 244, 255]),
    (1000, 1300, 100): (6.900326377095672, 0.09475878489869985, [30, 796, 994, 1228, 1300, 1365, 1430]),
}
"""Mean, 99th percentile, deviation -> mu, sigma, and the quantiles below."""


@pytest.mark.parametrize("wanted", FITTED)
def test_a_fitted_length_distribution_equals_the_recorded_one(wanted: tuple[int, int, int]) -> None:
    lengths, (mu, sigma, quantiles) = fitted(*wanted), FITTED[wanted]
    assert (lengths.mu, lengths.sigma, lengths.p99) == pytest.approx((mu, sigma, wanted[1]))
    assert [lengths.at(share) for share in (0, 0.01, 0.5, 0.98, 0.99, 0.995, 1.0)] == quantiles


def test_a_deviation_is_that_of_the_whole_sample() -> None:
    assert deviation([1, 2, 3, 6]) == pytest.approx(3.5**0.5)


def test_a_stratified_sample_has_one_value_of_each_part() -> None:
    shares = stratified(50, Random(4))
    assert [int(share * 50) for share in sorted(shares)] == list(range(50))
    assert shares != sorted(shares)


ROWS = [RecordedRequest(float(i), 100 + i, 10 + i, i) for i in range(40)]


def test_recorded_lengths_are_used_unchanged() -> None:
    asked = list(as_recorded("chat")(ROWS, Random(1)))
    assert [tuple(request) for (request,) in asked] == [("chat", *row[1:]) for row in ROWS]


MOST_TOKENS = 491
"""Of one of the recorded pairs: the next has more than 500."""


def test_pairs_are_drawn_evenly_from_those_that_fit() -> None:
    fitting = sorted(
        (row.output_tokens, row.prompt_tokens)
        for row in recording("azure-code")
        if row.prompt_tokens + row.output_tokens <= MOST_TOKENS
    )
    source = pairs("coder", "azure-code", MOST_TOKENS)
    rows = ROWS[:1] * len(fitting)
    drawn = sorted((request.output_tokens, request.prompt_tokens) for (request,) in source(rows, Random(1)))
    assert drawn == fitting, "as many draws as there are pairs: each is drawn once"
    assert max(sum(pair) for pair in fitting) == MOST_TOKENS


def sessions(count: int) -> Iterator[list[str]]:
    for requests in tool_sessions("tool", "loop", "final")(ROWS[:1] * count, Random(2)):
        yield [request.tier for request in requests]


def test_tool_sessions_have_the_papers_shares() -> None:
    made = list(sessions(4000))
    shares = [sum(len(tiers) == size for tiers in made) / len(made) for size in range(1, 7)]
    assert shares == pytest.approx([0.14, 0.32, 0.30, 0.18, 0.06, 0.0], abs=0.02)
    for tiers in made:
        assert tiers == (["tool", *["loop"] * (len(tiers) - 2), "final"] if len(tiers) > 1 else ["final"])
