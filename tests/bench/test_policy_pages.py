"""Each policy's page has the rows that the committed capacity table has."""

from pathlib import Path

import pytest
from capacity_parts import KNOWN, ONE_SAMPLE, PARTS
from capacity_rows import CapacityRows
from penstock_cli.capacity.question import Question, SearchConditions
from penstock_cli.capacity.search import CapacityResult
from penstock_cli.capacity.setting import PolicySetting, base_policy
from policy_rows import HEADING, TABLE, pages, written

THEIRS = pages()


def answer(policy: str, conditions: SearchConditions, setting: PolicySetting) -> CapacityResult:
    return CapacityResult(Question("coder", policy, conditions), setting, 0.33119, 0.34, 905, 90)


def test_every_policy_of_the_table_has_a_page() -> None:
    in_the_table = {base_policy(policy) for part in PARTS.values() for policy in part.policies}
    assert in_the_table == {page.stem for page in THEIRS if HEADING in page.read_text()}


@pytest.mark.parametrize("page", THEIRS)
def test_a_policy_page_matches_the_capacity_table(page: Path) -> None:
    assert page.read_text() == written(page, CapacityRows(TABLE))


def test_a_row_has_the_tuned_setting_or_is_marked_as_not_searched(tmp_path: Path) -> None:
    page, found = tmp_path / "vllm.md", CapacityRows(tmp_path / "capacity.json")
    page.write_text(f"# vllm\n\nIts idea.\n\n{HEADING}\nOld rows.\n")
    found.add(answer("vllm-spec", ONE_SAMPLE, PolicySetting(4096, 2)))
    found.add(answer("sarathi", KNOWN, PolicySetting(512)))
    text = written(page, found)
    assert (
        "| known lengths, exact timing, with the drafter; 1 sample | not searched yet | "
        "0.331 (4096 tokens, 2 drafts) | not searched yet |"
    ) in text
    assert "512" not in text
    assert "Old rows" not in text
    assert text.count(HEADING) == 1


def test_tuned_slots_are_named(tmp_path: Path) -> None:
    page, found = tmp_path / "orca.md", CapacityRows(tmp_path / "capacity.json")
    page.write_text("# orca\n")
    found.add(answer("orca", ONE_SAMPLE, PolicySetting(2048, slots=16)))
    assert "| 0.331 (2048 tokens, 16 slots) |" in written(page, found)


def test_the_page_of_a_policy_without_results_has_no_rows(tmp_path: Path) -> None:
    page = tmp_path / "nobody.md"
    page.write_text("# nobody\n\nIts idea.\n")
    assert written(page, CapacityRows(tmp_path / "none.json")) == "# nobody\n\nIts idea.\n"
