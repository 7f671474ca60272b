"""The result of a search, as a table and as JSON."""

from dataclasses import replace
from typing import Any

import pytest
from penstock_cli.capacity.question import Question, SearchConditions
from penstock_cli.capacity.report import answer_of, as_json, capacity_rps, summary_line, table
from penstock_cli.capacity.search import CapacityResult
from penstock_cli.capacity.setting import PolicySetting
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import LengthKnowledge
from penstock_simulator.simulation.disaggregated.distserve import Ratio

CONDITIONS = SearchConditions(1, 0.9, LengthKnowledge.KNOWN, TruthKind.EXACT, 1, "round-robin")


def answer(policy: str, low_rps: float, high_rps: float, **changed: Any) -> CapacityResult:
    found = {"requests": 900, "missed": 81, "setting": PolicySetting(2048), "scenario": "coder", **changed}
    question = Question(found.pop("scenario"), policy, CONDITIONS)
    return CapacityResult(question, low_rps=low_rps, high_rps=high_rps, **found)


TUNED = PolicySetting(2048, 3, Ratio(1, 2))
ANSWERS = [
    answer("annealing", 0.0, 0.02, promoted=30),
    answer("vllm", 1.5, 1.53, promoted=45),
    answer("slos-serve", 2.0, 2.04),
    answer("distserve", 1.0, 1.02, setting=TUNED),
    answer("oracle", 3.0, 3.06, missed=0),
    answer("oracle", 5.0, 5.1, scenario="toolllm"),
]


def test_the_best_policy_is_first_and_others_are_shares_of_it() -> None:
    columns = [list(column.cells) for column in table(ANSWERS, CONDITIONS).columns]
    assert list(zip(*columns, strict=True)) == [
        ("coder", "oracle", "3.060", "3.060", "100.0", "–", "99.6–100.0", "153", "–"),
        ("coder", "slos-serve", "2.000", "2.040", "91.0", "–", "89.0–92.7", "100", "–"),
        ("coder", "vllm", "1.500", "1.530", "91.0", "5.0", "89.0–92.7", "75", "2048 tokens a step"),
        (*("coder", "distserve", "1.000", "1.020", "91.0", "–", "89.0–92.7", "50"), str(TUNED)),
        ("coder", "annealing", "0.000", "0.020", "–", "–", "–", "0", "2048 tokens a step"),
        ("toolllm", "oracle", "5.100", "5.100", "91.0", "–", "89.0–92.7", "100", "–"),
    ]


def test_without_an_attaining_policy_there_is_no_best() -> None:
    shown = table([answer("vllm", 0.0, 0.02)], CONDITIONS)
    assert list(shown.columns[7].cells) == ["–"]


def test_the_title_states_the_search_conditions_and_the_replicas() -> None:
    def title(replicas: int) -> str:
        requested = SearchConditions(replicas, 0.9, LengthKnowledge.KNOWN, TruthKind.EXACT, 1, "round-robin")
        return str(table(ANSWERS, requested).title)

    output = "Highest rates at which 90 % of requests meet every target: {}, known lengths, exact timing"
    assert title(1) == output.format("1 replica")
    assert title(2) == output.format("2 replicas")


def test_the_summary_has_the_number_of_samples_that_confirmed_a_rate() -> None:
    def samples(seeds: int) -> str:
        requested = SearchConditions(1, 0.9, LengthKnowledge.KNOWN, TruthKind.EXACT, seeds, "round-robin")
        return (
            summary_line(requested)
            .removeprefix("Each capacity was confirmed by complete runs of ")
            .partition(" of its scenario")[0]
        )

    assert [samples(1), samples(2)] == ["1 sample", "2 samples"]


def test_a_row_has_the_result_in_four_digits() -> None:
    (row,) = as_json([answer("vllm", 1.5, 1.53, requests=907, promoted=45)])
    assert row == {
        "scenario": "coder",
        "policy": "vllm",
        "replicas": 1,
        "attainment_target": 0.9,
        "capacity_rps_per_replica": 1.5,
        "bracket_rps": [1.5, 1.53],
        "attainment": 0.9107,
        "attained_promoted": 0.0496,
        "attainment_95": [0.8904, 0.9276],
        "requests": 907,
        "seeds": 1,
        "lengths": "known",
        "truth": "exact",
        "order": "round-robin",
        "batch_tokens": 2048,
        "drafts": 0,
    }


def test_a_row_has_the_settings_split_and_slots() -> None:
    split, slotted = as_json(
        [
            answer("distserve", 1.0, 1.02, setting=PolicySetting(2048, ratio=Ratio(2, 1))),
            answer("orca", 1.0, 1.02, setting=PolicySetting(2048, slots=16)),
        ]
    )
    assert split["prefill_decode_ratio"] == "2:1" and "slots" not in split
    assert slotted["slots"] == 16 and "prefill_decode_ratio" not in slotted


@pytest.mark.parametrize(
    "requested",
    [
        answer("sola", 4.0, 4.08, missed=77, promoted=25),
        answer("distserve", 2.0, 2.04, setting=TUNED),
        answer("vllm", 0.0, 0.02, missed=0),
        answer("oracle", 7.9, 8.0, missed=0, promoted=0),
    ],
    ids=lambda requested: requested.question.policy,
)
def test_a_row_holds_the_whole_result(requested: CapacityResult) -> None:
    (row,) = as_json([requested])
    assert answer_of(row) == requested


def test_rows_have_figures_of_prefix_caches_if_engines_have_them() -> None:
    figures = {"cached_share": 0.6123, "admitted_attainment": 0.9951, "imbalance": 1.25}
    with_caches, without = as_json([answer("vllm", 1.0, 1.02, **figures), answer("vllm", 1.0, 1.02)])
    assert {name: with_caches[name] for name in figures} == figures
    assert not figures.keys() & without.keys()
    assert answer_of(with_caches) == answer("vllm", 1.0, 1.02, **figures)


def test_a_row_has_the_sessions_of_its_samples() -> None:
    requested = replace(CONDITIONS, sessions=30)
    found = replace(answer("vllm", 1.0, 1.02), question=Question("swe", "vllm", requested))
    (row,) = as_json([found])
    assert row["sessions"] == 30
    assert answer_of(row) == found


def test_a_row_of_no_capacity_has_no_shares() -> None:
    (row,) = as_json([answer("vllm", 0.0, 0.02, promoted=3)])
    assert (row["attainment"], row["attained_promoted"], row["attainment_95"]) == (None, None, None)
    assert answer_of(row).missed == 0


def test_the_capacity_of_the_bound_is_the_rate_that_it_rules_out() -> None:
    assert capacity_rps(answer("oracle", 3.0, 3.06)) == 3.06
    assert capacity_rps(answer("vllm", 3.0, 3.06)) == 3.0
