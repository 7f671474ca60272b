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


def test_every_package_and_folder_of_code_is_in_the_architecture() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    packages = sorted(ROOT.glob("*/src/penstock_*/__init__.py"))
    folders = sorted(ROOT.glob("*/src/penstock_*/*/__init__.py"))
    named = [
        *[path.relative_to(ROOT).parts[0] for path in packages],
        *[path.parent.name for path in folders],
        *[path.name for path in (ROOT / "tests").iterdir() if path.name.startswith("vllm_")],
    ]
    assert len(named) > 40
    assert [name for name in named if f"{name}/`" not in page] == []
