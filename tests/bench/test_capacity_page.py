"""The page of the capacity tables: ratios over the best rival, and unsearched scenarios."""

from dataclasses import replace
from pathlib import Path

import pytest
from capacity_docs import FILLED, filled
from capacity_page import geometric_mean, page_of, versus
from capacity_parts import ONE_SAMPLE, PARTS, PagePart
from capacity_rows import CapacityRows
from penstock_cli.capacity.question import Question
from penstock_cli.capacity.search import CapacityResult
from penstock_cli.capacity.setting import PolicySetting

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
PART = PagePart(
    "Rivals", ONE_SAMPLE, ("chatbot", "toolllm"), ("slos-serve", "vllm-spec", "distserve-spec"), True
)


@pytest.fixture
def rows(tmp_path: Path) -> CapacityRows:
    found = CapacityRows(tmp_path / "capacity.json")
    for scenario, policy, rate_rps in (
        ("chatbot", "slos-serve", 6.0),
        ("chatbot", "vllm", 3.0),
        ("chatbot", "vllm-spec", 5.0),
        ("toolllm", "slos-serve", 0.3),
        ("toolllm", "vllm", 0.1),
        ("toolllm", "distserve-spec", 0.4),
    ):
        found.add(answer(scenario, policy, rate_rps))
    return found


def test_a_scenario_without_a_fully_searched_rival_is_left_out(rows: CapacityRows) -> None:
    part = replace(PART, policies=("slos-serve", "sola-spec"))
    rows.add(answer("toolllm", "sola-spec", 0.05))
    assert [one.scenario for one in versus(part, rows)] == ["toolllm"]


def test_the_paper_compares_without_drafters(rows: CapacityRows) -> None:
    part = replace(PART, policies=("slos-serve", "vllm"))
    assert [one.ratio for one in versus(part, rows, drafters=False)] == pytest.approx([2.0, 3.0])


def answer(scenario: str, policy: str, rate_rps: float) -> CapacityResult:
    return CapacityResult(
        Question(scenario, policy, ONE_SAMPLE), PolicySetting(2048), rate_rps, rate_rps * 1.02, 900, 88
    )


def test_the_best_rival_may_have_a_drafter(rows: CapacityRows) -> None:
    chatbot, toolllm = versus(PART, rows)
    assert (chatbot.best, chatbot.best_rps) == ("vllm-spec", 5.0)
    assert chatbot.ratio == pytest.approx(1.2)
    assert toolllm.best == "vllm"
    assert toolllm.ratio == pytest.approx(3.0)


def test_policies_of_several_gpus_are_compared_separately(rows: CapacityRows) -> None:
    chatbot, toolllm = versus(PART, rows)
    assert (chatbot.distserve_rps, toolllm.distserve_rps) == (None, 0.4)
    assert toolllm.ratio_to_all == pytest.approx(0.75)
    text = page_of({"best": PART}, rows)
    assert "Geometric mean of 2: 1.90×; 0.95× where distserve counts by its rate per GPU." in text


def test_scenarios_not_searched_yet_are_named(rows: CapacityRows) -> None:
    text = page_of({"best": PART}, rows)
    assert "Not searched yet: distserve-spec in chatbot; vllm-spec in toolllm." in text


def test_rows_of_other_samples_are_not_compared(rows: CapacityRows) -> None:
    assert versus(replace(PART, conditions=replace(ONE_SAMPLE, seeds=3)), rows) == []


def test_a_row_is_written_as_soon_as_it_is_found(rows: CapacityRows, tmp_path: Path) -> None:
    rows.add(answer("chatbot", "vllm", 3.5))
    again = CapacityRows(tmp_path / "capacity.json")
    assert again.answer(Question("chatbot", "vllm", ONE_SAMPLE)) == answer("chatbot", "vllm", 3.5)
    assert again.answer(Question("coder", "vllm", ONE_SAMPLE)) is None


def test_a_row_of_other_code_is_searched_again(rows: CapacityRows, tmp_path: Path) -> None:
    requested = Question("chatbot", "vllm", ONE_SAMPLE)
    assert rows.current(requested)
    assert not rows.current(Question("coder", "vllm", ONE_SAMPLE))
    path = tmp_path / "capacity.json"
    path.write_text(path.read_text().replace('"code": "', '"code": "other'))
    again = CapacityRows(path)
    assert again.answer(requested) is not None
    assert not again.current(requested)


def test_the_committed_page_matches_the_committed_tables() -> None:
    assert (RESULTS / "capacity.md").read_text() == page_of(PARTS, CapacityRows(RESULTS / "capacity.json"))


def test_ratios_have_a_geometric_mean() -> None:
    assert geometric_mean(iter((0.5, 2.0, 8.0))) == pytest.approx(2.0)


def test_pages_match_the_capacity_rows() -> None:
    rows = CapacityRows(RESULTS / "capacity.json")
    for path in FILLED:
        text = path.read_text()
        assert "<!-- capacity: " in text
        assert filled(text, rows) == text, f"{path.name}: run bench/capacity_docs.py"
