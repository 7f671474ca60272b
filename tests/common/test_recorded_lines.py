"""Recording of lines, and how a difference is shown."""

from pathlib import Path

import pytest
from recorded_lines import TOGETHER, assert_recorded

LINES = [f"line {number}" for number in range(2 * TOGETHER + 1)]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_RECORD", "1")
    for which in ("other", "a"):
        assert_recorded(tmp_path / "recorded.json", which, LINES)
    monkeypatch.delenv("PENSTOCK_RECORD")
    return tmp_path / "recorded.json"


def test_the_same_lines_pass(file: Path) -> None:
    assert_recorded(file, "a", LINES)


@pytest.mark.parametrize("number", [0, TOGETHER, 2 * TOGETHER])
def test_a_changed_line_is_shown_with_its_neighbours(file: Path, number: int) -> None:
    changed = [*LINES[:number], "changed", *LINES[number + 1 :]]
    with pytest.raises(AssertionError) as reported:
        assert_recorded(file, "a", changed)
    assert str(reported.value).splitlines()[:2] == ["a, from here on:", "changed"]


def test_added_and_missing_lines_are_shown(file: Path) -> None:
    for lines in (LINES[:-1], [*LINES, *LINES]):
        with pytest.raises(AssertionError, match="a, from here on"):
            assert_recorded(file, "a", lines)
