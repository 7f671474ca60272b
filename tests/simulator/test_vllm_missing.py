"""vllm-real where vLLM has not been set up."""

import os
import subprocess
import sys
from pathlib import Path

from penstock_simulator.real_vllm.location import REQUIREMENTS

ROOT = Path(__file__).parents[2]


def test_without_vllm_one_line_names_the_command_that_installs_it(tmp_path: Path) -> None:
    penstock = [str(Path(sys.executable).with_name("penstock")), "simulate", "--policy", "vllm-real"]
    inputs = [
        "-f",
        str(ROOT / "examples/demo-pool.yaml"),
        "--trace",
        str(ROOT / "examples/azure-excerpt.csv.gz"),
    ]
    done = subprocess.run(
        [*penstock, *inputs],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "run 'make vllm-env' once" in done.stderr


def test_every_package_beside_vllm_is_pinned() -> None:
    packages = [line for line in REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]
    assert packages
    assert all(line.count("==") == 1 for line in packages)
