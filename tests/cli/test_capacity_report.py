"""What a capacity search shows: every column of its table, for each kind of result."""

from io import StringIO

import pytest
from penstock_cli.capacity.question import Question, SearchConditions
from penstock_cli.capacity.report import answer_of, as_json, capacity_rps, summary_line, table
from penstock_cli.capacity.search import CapacityResult
from penstock_cli.capacity.setting import PolicySetting
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import LengthKnowledge
from penstock_simulator.simulation.disaggregated.distserve import Ratio
from rich.console import Console

ASKED = SearchConditions(1, 0.9, LengthKnowledge.KNOWN, TruthKind.EXACT, 3, "round-robin")


def result(
    policy: str, low_rps: float, high_rps: float, missed: int = 100, promoted: int | None = None
) -> CapacityResult:
    setting = PolicySetting(2048, 3, Ratio(1, 2) if policy == "distserve" else None)
    return CapacityResult(
        Question("coder", policy, ASKED), setting, low_rps, high_rps, 1000, missed, promoted
    )


def lines_of(*results: CapacityResult) -> list[list[str]]:
    """The table's lines as cells; a cell has no two spaces in sequence."""
    screen = StringIO()
    Console(file=screen, width=250).print(table(results, ASKED))
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()]
        for line in screen.getvalue().splitlines()
        if line.startswith("coder")
    ]


def test_each_policy_is_compared_with_the_best_policy_and_not_with_the_bound() -> None:
    bound, best, half = (
        result("oracle", 7.9, 8.0),
        result("sola", 4.0, 4.08, 100, 25),
        result("vllm", 2.0, 2.04),
    )
    assert [[line[1], line[2], line[3], line[-2]] for line in lines_of(half, bound, best)] == [
        ["oracle", "8.000", "8.000", "200"],
        ["sola", "4.000", "4.080", "100"],
        ["vllm", "2.000", "2.040", "50"],
    ]
    assert [line[4:6] for line in lines_of(best, half)] == [["90.0", "2.5"], ["90.0", "–"]]
    assert capacity_rps(bound) == 8.0


def test_a_policy_that_attains_at_no_rate_has_dashes() -> None:
    (line,) = lines_of(result("vllm", 0.0, 0.02, promoted=10))
    assert line == ["coder", "vllm", "0.000", "0.020", "–", "–", "–", "–", line[-1]]


def test_attainment_has_its_interval() -> None:
    (line,) = lines_of(result("sola", 4.0, 4.08))
    assert line[6] == "88.0–91.7"


def test_only_what_was_tuned_says_to_what() -> None:
    bound, tuned, split = lines_of(result("oracle", 7, 8), result("sola", 4, 5), result("distserve", 2, 3))
    assert bound[-1] == "–"
    assert "2048 tokens a step" in tuned[-1]
    assert "1:2" in split[-1]


@pytest.mark.parametrize(
    "answer",
    [
        result("sola", 4.0, 4.08, 77, 25),
        result("distserve", 2.0, 2.04),
        result("vllm", 0.0, 0.02, 0),
        result("oracle", 7.9, 8.0, 0, 0),
    ],
    ids=lambda answer: answer.question.policy,
)
def test_json_holds_the_whole_result(answer: CapacityResult) -> None:
    (row,) = as_json([answer])
    assert answer_of(row) == answer
    assert (row["attainment_95"] is None) == (answer.low_rps == 0)
    assert ("prefill_decode_ratio" in row) == (answer.question.policy == "distserve")


@pytest.mark.parametrize(("seeds", "samples"), [(1, "1 sample of"), (3, "3 samples of")])
def test_the_summary_says_on_how_many_samples_a_rate_was_confirmed(seeds: int, samples: str) -> None:
    asked = SearchConditions(1, 0.9, LengthKnowledge.KNOWN, TruthKind.EXACT, seeds, "round-robin")
    assert samples in summary_line(asked)
