"""Tests run this checkout's code, in their own process and in those that they start."""

import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/src/penstock_*/__init__.py"))

MAIN = "def main(arguments=None):\n    return 77\n"
IN_THE_CLONE = """
from live.fork_server import ForkServer
from live.process import Process
from penstock_simulator.main import main

def test_everything_is_the_clones(tmp_path):
    assert main() == 77
    fork_server = ForkServer()
    for number, start in enumerate((fork_server, Process)):
        assert start("engine", ["penstock-engine"], tmp_path / f"{number}.log").exit_code() == 77
    fork_server.close()
"""


def test_packages_are_those_of_this_checkout() -> None:
    assert len(PACKAGES) >= 11
    for name in PACKAGES:
        assert Path(import_module(name).__path__[0]).resolve().is_relative_to(ROOT)


def test_a_clone_that_shares_the_environment_tests_itself(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    for folder in ("*/src", "tests/common", "tests/processes/live"):
        for source in ROOT.glob(folder):
            shutil.copytree(source, clone / source.relative_to(ROOT))
    for file in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / file, clone / file)
    (clone / "simulator/src/penstock_simulator/main.py").write_text(MAIN)
    (clone / "tests/test_clone.py").write_text(IN_THE_CLONE)
    command = [sys.executable, "-m", "pytest", "tests/test_clone.py"]
    done = subprocess.run(command, cwd=clone, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
