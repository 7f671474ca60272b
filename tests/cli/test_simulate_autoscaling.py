"""`penstock simulate` of a pool that scales: on by its file, off by a flag, reported in text and JSON."""

import json
from pathlib import Path

import pytest
from penstock_cli.main import app
from typer.testing import CliRunner

POOL = """
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {name: small}
spec:
  model: {name: m}
  engine: {type: simulated, timeModel: slos-serve-opt-6.7b-a100}
  replicas: 2
  autoscaling: {minReplicas: 1, maxReplicas: 3, scaleDown: {stabilizationWindow: 30s}}
  tiers:
  - {name: chat, slo: {ttft: 2s, tpot: 100ms}}
  defaultTier: chat
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    pool, trace = tmp_path / "pool.yaml", tmp_path / "trace.csv"
    pool.write_text(POOL)
    rows = [f"{second},100,10,chat" for second in range(90)]
    trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,tier", *rows]))
    return str(pool), str(trace), str(tmp_path / "out.json")


def simulated(files: tuple[str, str, str], *more: str) -> tuple[str, dict[str, float]]:
    pool, trace, out = files
    ended = CliRunner().invoke(app, ["simulate", "-f", pool, "--trace", trace, "--json", out, *more])
    assert ended.exit_code == 0, ended.output
    return ended.output, json.loads(Path(out).read_text())


def test_a_pool_with_too_many_replicas_removes_one(files: tuple[str, str, str]) -> None:
    words, found = simulated(files)
    assert "Autoscaling kept between 1 and 2 replicas (changes: 1)" in words
    assert (found["scale_events"], found["most_replicas"]) == (1, 2)
    assert found["gpu_hours"] * 3600 == pytest.approx(2 * 45 + 44, abs=2)


def test_fixed_replicas_are_not_scaled(files: tuple[str, str, str]) -> None:
    words, found = simulated(files, "--fixed")
    assert "Autoscaling" not in words
    assert "gpu_hours" not in found
