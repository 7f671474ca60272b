"""`penstock simulate --prefix-caching`: hits as the trace's ids say, reported in text and JSON."""

import json
from pathlib import Path

import pytest
from penstock_cli.failure import Failure
from penstock_cli.main import app
from typer.testing import CliRunner

POOL = """
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {name: small}
spec:
  model: {name: m}
  engine: {type: simulated, timeModel: slos-serve-opt-6.7b-a100}
  replicas: 1
  tiers:
  - {name: chat, slo: {ttft: 2s, tpot: 100ms}}
  defaultTier: chat
"""


def request(second: int, prompt_tokens: int, hash_ids: list[int]) -> str:
    return json.dumps(
        {
            "timestamp": 1000 * second,
            "input_length": prompt_tokens,
            "output_length": 5,
            "hash_ids": hash_ids,
        }
    )


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    pool, trace = tmp_path / "pool.yaml", tmp_path / "trace.jsonl"
    pool.write_text(POOL)
    first, other = list(range(10)), [0, 1, 2, 3, 4, *range(20, 25)]
    trace.write_text("\n".join([request(0, 640, first), request(9, 640, other), request(18, 640, first)]))
    return str(pool), str(trace), str(tmp_path / "out.json")


def simulated(files: tuple[str, str, str], *more: str) -> str:
    pool, trace, out = files
    flags = ["simulate", "-f", pool, "--trace", trace, "--json", out, *more]
    ended = CliRunner().invoke(app, flags, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_the_second_prompt_finds_what_it_shares_and_the_third_all_but_its_last_block(
    files: tuple[str, str, str],
) -> None:
    words = simulated(files, "--prefix-caching", "--block-tokens", "64")
    assert "49.2 % of prompt tokens were found in prefix caches" in words
    assert json.loads(Path(files[2]).read_text())["cached_share"] == (320 + 624) / (3 * 640)


def test_without_it_nothing_is_cached_and_nothing_is_said_of_it(files: tuple[str, str, str]) -> None:
    words = simulated(files)
    assert "prefix caches" not in words
    assert "cached_share" not in json.loads(Path(files[2]).read_text())


def test_blocks_of_another_size_are_noticed(files: tuple[str, str, str]) -> None:
    reported = (
        "request 1 by arrival has 10 hash_ids, and its 640 tokens are 2 blocks of 512; give --block-tokens N"
    )
    with pytest.raises(Failure, match=reported):
        simulated(files, "--prefix-caching")


def test_vllms_own_scheduler_is_refused(files: tuple[str, str, str]) -> None:
    with pytest.raises(Failure, match="vllm-real cannot run with a prefix cache"):
        simulated(files, "--prefix-caching", "--policy", "vllm-real")


def test_where_nothing_was_served_nothing_was_found(files: tuple[str, str, str]) -> None:
    Path(files[1]).write_text(request(0, 10**6, []))
    words = simulated(files, "--prefix-caching")
    assert "prefix caches" not in words
    assert json.loads(Path(files[2]).read_text())["cached_share"] is None
