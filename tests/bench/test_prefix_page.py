"""What `bench/prefix.py` searches next, and what its pages say of the rows that there are."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest
from capacity_rows import CapacityRows
from penstock_cli.capacity.sampled_question import RateProbe
from penstock_cli.capacity.search import CapacityResult
from penstock_cli.capacity.setting import PolicySetting
from prefix import RESULTS, best_of_side, questions, start
from prefix_cells import CELLS, CONTENDERS, OURS, Contender
from prefix_page import (
    RESEARCH,
    found_in,
    missing,
    ours_and_best_rival,
    rate,
    rivals_left,
    section,
    summary,
)

CELL, OTHER = CELLS[0], CELLS[1]
BY_NAME = {contender.name: contender for contender in CONTENDERS}
DYNAMO = BY_NAME["vllm, dynamo"]
LMETRIC = BY_NAME["vllm, lmetric"]


def row(contender: Contender, rule: int, low_rps: float, kept: float = 1.0) -> CapacityResult:
    question = CELL.question(contender, contender.orders[rule])
    setting = PolicySetting(512)
    return CapacityResult(question, setting, low_rps, low_rps * 1.02, 1200, 120, 0, 0.03, kept, 1.1)


@pytest.fixture
def rows(tmp_path: Path) -> CapacityRows:
    return CapacityRows(tmp_path / "prefix.json")


def asked(rows: CapacityRows, *, missing: bool) -> list[tuple[str, str]]:
    options = argparse.Namespace(cell=[CELL.name], missing=missing)
    return [(question.policy, question.conditions.order) for _, question in questions(options, rows)]


def test_the_best_rule_of_a_contender_counts_and_the_number_searched_is_kept(rows: CapacityRows) -> None:
    rows.add(row(DYNAMO, 0, 0.5))
    rows.add(row(DYNAMO, 2, 0.8))
    (found,) = found_in(CELL, rows)
    assert (found.contender, found.best.low_rps, found.searched) == (DYNAMO, 0.8, 2)
    assert found_in(OTHER, rows) == []


def test_the_best_rival_is_the_one_with_the_highest_capacity(rows: CapacityRows) -> None:
    for one in (row(BY_NAME[OURS], 0, 1.6), row(DYNAMO, 0, 0.8), row(LMETRIC, 0, 1.0)):
        rows.add(one)
    pair = ours_and_best_rival(found_in(CELL, rows))
    assert pair is not None
    assert (pair[0].low_rps, pair[1].contender) == (1.6, LMETRIC)


def test_a_cell_without_an_attaining_rival_is_not_compared(rows: CapacityRows) -> None:
    rows.add(row(BY_NAME[OURS], 0, 1.6))
    rows.add(row(LMETRIC, 0, 0.0))
    assert ours_and_best_rival(found_in(CELL, rows)) is None
    assert summary(rows)[0] == "No cell was searched yet."


def test_a_summary_has_the_ratio_and_the_mean_of_cells_that_were_searched_whole(rows: CapacityRows) -> None:
    rows.add(row(BY_NAME[OURS], 0, 1.5, kept=0.9934))
    for rival in (rival for rival in CONTENDERS if rival.name != OURS):
        for rule in range(len(rival.orders)):
            rows.add(row(rival, rule, 1.0))
    lines = summary(rows)
    assert f"| {CELL.title} | 1.5 |" in lines[2]
    assert "| **1.50×** | 99.34 |" in lines[2]
    mean = f"1 of {len(CELLS)} cells searched with all rivals, geometric mean of 1 ratio 1.50×"
    assert f"{mean}; fewest admitted requests that kept their SLO: 99.34 %." in lines


def test_a_rival_without_an_upper_limit_has_no_ratio(rows: CapacityRows) -> None:
    rows.add(row(BY_NAME[OURS], 0, 1.5))
    for rival in (rival for rival in CONTENDERS if rival.name != OURS):
        for rule in range(len(rival.orders)):
            rows.add(replace(row(rival, rule, 1.0), high_rps=1.0))
    lines = summary(rows)
    assert "| ≥ 1 | – |" in lines[2]
    assert any(line.startswith(f"1 of {len(CELLS)} cells searched with all rivals; fewest") for line in lines)


def test_a_cell_with_unsearched_rivals_is_marked_and_in_no_mean(rows: CapacityRows) -> None:
    for one in (row(BY_NAME[OURS], 0, 1.5), row(LMETRIC, 0, 1.0), row(DYNAMO, 0, 0.8)):
        rows.add(one)
    lines = summary(rows)
    assert f"| {CELL.title} ({len(CONTENDERS) - 2} rivals not searched) |" in lines[2]
    assert any(line.startswith(f"0 of {len(CELLS)} cells searched with all rivals; fewest") for line in lines)


def test_a_capacity_without_an_upper_end_is_marked() -> None:
    found = row(LMETRIC, 0, 1.0)
    assert (rate(found), rate(replace(found, high_rps=1.0))) == ("1", "≥ 1")


def test_a_rival_that_was_never_the_best_has_the_best_ones_limit(rows: CapacityRows) -> None:
    beaten = replace(row(DYNAMO, 0, 0.0), high_rps=1.02)
    for one in (row(BY_NAME[OURS], 0, 2.04), row(LMETRIC, 0, 1.0), beaten):
        rows.add(one)
    lines = [line for line in section(CELL, found_in(CELL, rows)) if "vllm, dynamo" in line]
    assert lines[0].startswith("| vllm, dynamo | < 1.02 | – | < 0.50 |")
    assert rivals_left(found_in(CELL, rows)) == len(CONTENDERS) - 2


def test_a_rule_competes_with_the_best_of_its_own_side(rows: CapacityRows) -> None:
    ours, rival = BY_NAME[OURS], CELL.question(DYNAMO, "dynamo-4")
    assert best_of_side(rows, CELL, rival) == 0.0
    for one in (row(ours, 0, 1.6), row(LMETRIC, 0, 1.0), replace(row(DYNAMO, 0, 0.0), high_rps=1.4)):
        rows.add(one)
    assert best_of_side(rows, CELL, rival) == 1.02
    assert best_of_side(rows, CELL, CELL.question(ours, "best-fit")) == pytest.approx(1.632)
    assert best_of_side(rows, CELL, CELL.question(LMETRIC, "lmetric")) == 0.0


def test_contenders_without_a_row_are_named(rows: CapacityRows) -> None:
    for contender in CONTENDERS:
        if contender is not LMETRIC:
            rows.add(row(contender, 0, 1.0))
    assert f"- {CELL.title}: {LMETRIC.name}" in missing(rows)
    assert f"- {OTHER.title}: all" in missing(rows)


def test_a_search_with_a_row_of_this_code_is_not_repeated(rows: CapacityRows) -> None:
    every = asked(rows, missing=False)
    rows.add(row(LMETRIC, 0, 1.0))
    assert asked(rows, missing=False) == [each for each in every if each != ("vllm", "lmetric")]


def test_rows_of_other_code_are_searched_last_or_kept(
    rows: CapacityRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.add(row(BY_NAME[OURS], 0, 1.6))
    monkeypatch.setattr("capacity_rows.code_digest", lambda: "of other code")
    later = CapacityRows(tmp_path / "prefix.json")
    assert asked(later, missing=False)[-1] == (OURS, "prefix")
    assert (OURS, "prefix") not in asked(later, missing=True)


def test_a_search_starts_at_the_result_of_the_policys_other_rule(rows: CapacityRows) -> None:
    question = CELL.question(DYNAMO, DYNAMO.orders[0])
    assert start(rows, CELL, question).rate_rps == CELL.start_rps
    rows.add(row(LMETRIC, 0, 1.25))
    assert start(rows, CELL, question) == RateProbe(PolicySetting(512), 1.25)


def test_the_research_page_has_the_summary_of_the_rows() -> None:
    assert "\n".join(summary(CapacityRows(RESULTS / "prefix.json"))) in RESEARCH.read_text()
