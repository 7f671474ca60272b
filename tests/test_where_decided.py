"""CONTRIBUTING.md answers where things are decided with functions, classes and files that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def answers() -> list[tuple[str, str]]:
    """The name and the path of each answer."""
    section = (
        (ROOT / "CONTRIBUTING.md").read_text().partition("### Where is … decided?")[2].partition("\n## ")[0]
    )
    questions = section.count("\n| ") - 1
    found = re.findall(r"^\| .+ \| `([^`]+)` in `([^`]+)` \|$", section, re.MULTILINE)
    assert len(found) == questions
    return found


def names_in(path: str) -> set[str]:
    """Functions and classes of a file, and `Class.method`."""
    nodes = ast.parse((ROOT / path).read_text()).body
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        *[node.name for node in nodes if isinstance(node, (ast.ClassDef, *functions))],
        *[f"{one.name}.{node.name}" for one in classes for node in one.body if isinstance(node, functions)],
    }


def test_at_least_twenty_questions_are_answered() -> None:
    assert len(answers()) >= 20


def test_every_answer_is_a_name_in_a_file() -> None:
    assert [(name, path) for name, path in answers() if name not in names_in(path)] == []


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
