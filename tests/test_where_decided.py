"""Pages name functions, files and folders that exist, and CONTRIBUTING.md says where things are decided."""

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


def pages() -> list[Path]:
    """The pages that describe today's code. Decision records describe that of their time."""
    pages = [
        "README.md",
        "CONTRIBUTING.md",
        "ARCHITECTURE.md",
        *ROOT.glob("*/README.md"),
        *ROOT.glob("docs/**/*.md"),
    ]
    return [ROOT / page for page in pages if "adr" not in Path(page).parts]


def is_in_the_tree(name: str) -> bool:
    """Whether a file ends like this; a path may begin with a distribution: `core/timing/fit.py`."""
    first, _, rest = name.partition("/")
    return any(
        path.is_file()
        for pattern in (
            name,
            f"*/src/penstock_*/{name}",
            f"*/{name}",
            f"*/src/{name}",
            f"{first}/src/penstock_*/{rest or name}",
        )
        for path in ROOT.glob(pattern)
    ) or ("/" not in name and any(ROOT.glob(f"*/src/**/{name}")))


def test_python_files_that_pages_name_exist() -> None:
    named = {
        (page.relative_to(ROOT).as_posix(), name)
        for page in pages()
        for name in re.findall(r"`((?:[\w-]+/)*\w+\.py)`", page.read_text())
    }
    assert len(named) > 40
    assert {(page, name) for page, name in named if not is_in_the_tree(name)} == set()


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
