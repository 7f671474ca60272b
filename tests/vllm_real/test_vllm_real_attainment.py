"""The benchmark that compares attainment is also a test: in short, every scenario at one load."""

import subprocess
import sys
from pathlib import Path

from penstock_simulator.scenarios import SCENARIOS

BENCH = Path(__file__).parents[2] / "bench" / "vllm_real.py"


def test_the_policy_vllm_attains_as_much_as_vllm_itself_in_every_scenario() -> None:
    command = [sys.executable, str(BENCH), "--middle", "--budgets", "512", "--requests", "60"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(
        f"| {name} |" in done.stdout for name, scenario in SCENARIOS.items() if scenario.sessions is None
    )
