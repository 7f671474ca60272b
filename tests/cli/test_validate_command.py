"""`penstock validate` shows a pool's tiers as a table, and its choices in a line."""

from pathlib import Path
from typing import Any

import pytest
from penstock_cli.commands.validate import headline, tiers_table
from penstock_cli.main import app, run
from penstock_pool import load_pool

POOL = """
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {name: p}
spec:
  model: {name: m}
  engine: {type: simulated, timeModel: llama-3-8b-a100}
  replicas: 3
  tiers:
  - {name: chat, slo: {ttft: {slowdown: 5}, tpot: 100ms}}
  - {name: thinking, slo: {ttft: 800ms, tpot: 50ms, answerTpot: 120ms, judge: window}, value: 2.5}
  - {name: whole, slo: {e2e: 90s}}
  - {name: batch, bestEffort: true}
  defaultTier: chat
  scheduling: {policy: vllm}
  routing: {backup: reject}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pool.yaml"
    path.write_text(POOL)
    return path


def rows(file: Path) -> list[tuple[str, ...]]:
    table: Any = tiers_table(load_pool(file))
    return list(zip(*[column.cells for column in table.columns], strict=True))


def test_every_kind_of_target_has_its_column(file: Path) -> None:
    assert rows(file) == [
        ("chat (default)", "5 × idle prefill", "100", "mean", "–", "1"),
        ("thinking", "0.8 s", "50, then 120", "window", "–", "2.5"),
        ("whole", "–", "–", "–", "90", "1"),
        ("batch", "best effort", "–", "–", "–", "–"),
    ]


def test_a_pools_headline_has_its_replicas_policy_and_backup(file: Path) -> None:
    assert headline(load_pool(file), 3) == (
        "pool p, m on 3 replicas (simulated, time model llama-3-8b-a100), policy vllm, then reject"
    )
    assert "m on 1 replica (" in headline(load_pool(file), 1)


def test_a_valid_pool_is_shown(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: app(["validate", "-f", str(file)])) == 0
    output = " ".join(capfd.readouterr().out.split())
    assert "is valid: pool p, m on 3 replicas" in output
    assert "thinking 0.8 s 50, then 120 window – 2.5" in output


def test_key_files_that_a_pool_names_are_read(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file.write_text(f"{POOL}  applications:\n  - {{name: ide, tier: chat, keys: {{file: keys.txt}}}}\n")
    assert run(lambda: app(["validate", "-f", str(file)])) == 2
    assert "keys.txt" in capfd.readouterr().err
    (file.parent / "keys.txt").write_text("sk-" + "a" * 40 + "\n")
    assert run(lambda: app(["validate", "-f", str(file)])) == 0
