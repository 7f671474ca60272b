"""CONTRIBUTING.md answers where things are decided with paths of files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def answers() -> list[str]:
    section = (
        (ROOT / "CONTRIBUTING.md").read_text().partition("### Where is … decided?")[2].partition("\n## ")[0]
    )
    return re.findall(r"^\| .+ \| `([^`]+)` \|$", section, re.MULTILINE)


def test_at_least_twenty_questions_are_answered() -> None:
    assert len(answers()) >= 20


def test_every_answer_is_a_file() -> None:
    assert [path for path in answers() if not (ROOT / path).is_file()] == []
