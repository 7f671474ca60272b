"""Each policy's page has the rows that the committed capacity table has."""

from pathlib import Path

import orjson
import pytest
from policy_rows import HEADING, PAGES, TABLE, written

FOUND = orjson.loads(TABLE.read_bytes())
ROW = {
    "replicas": 1,
    "lengths": "known",
    "truth": "exact",
    "seeds": 3,
    "scenario": "coder",
    "capacity_rps_per_replica": 0.33119,
    "batch_tokens": 4096,
    "drafts": 2,
}


THEIRS = [page for page in PAGES.glob("*.md") if page.stem != "README"]


def test_every_policy_of_the_table_has_a_page() -> None:
    in_the_table = {row["policy"].removesuffix("-spec") for row in FOUND}
    assert in_the_table
    assert in_the_table == {page.stem for page in THEIRS if HEADING in page.read_text()}


@pytest.mark.parametrize("page", THEIRS)
def test_a_page_says_what_the_table_says(page: Path) -> None:
    assert page.read_text() == written(page, FOUND)


def test_a_row_says_what_was_tuned(tmp_path: Path) -> None:
    page = tmp_path / "vllm.md"
    page.write_text(f"# vllm\n\nIts idea.\n\n{HEADING}\nOld rows.\n")
    text = written(page, [{**ROW, "policy": "vllm-spec"}, {**ROW, "policy": "sarathi"}])
    assert (
        "| known lengths, exact truth, fixed drafts; 3 samples | – | 0.331 (4096 tokens, 2 drafts) | – |"
        in text
    )
    assert "Old rows" not in text
    assert text.count(HEADING) == 1


def test_a_page_whose_policy_is_not_in_the_table_has_no_rows(tmp_path: Path) -> None:
    page = tmp_path / "vllm.md"
    page.write_text("# vllm\n\nIts idea.\n")
    assert written(page, []) == "# vllm\n\nIts idea.\n"
