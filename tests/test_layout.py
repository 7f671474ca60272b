"""Where files may live. Each rule here prevents a mistake that was made."""

import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def tracked_python() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def test_python_lives_in_src_tests_e2e_bench_or_examples() -> None:
    homes = {"tests", "e2e", "bench", "examples"}
    strays = [p for p in tracked_python() if p.parts[0] not in homes and p.parts[1] != "src"]
    assert strays == []


def test_operator_folder_is_no_package() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_test_files_have_unique_names() -> None:
    names = Counter(p.name for p in tracked_python() if p.name.startswith("test_"))
    assert [name for name, times in names.items() if times > 1] == []


def test_no_package_markers_among_tests() -> None:
    assert [p for p in tracked_python() if p.parts[0] == "tests" and p.name == "__init__.py"] == []
