"""The page of the command line equals the output of `--help`."""

from pathlib import Path

from penstock_cli.reference import page

DOCS = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def test_the_page_is_fresh() -> None:
    assert DOCS.read_text() == page(), "stale: run make cli-page"
