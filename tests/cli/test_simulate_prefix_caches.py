"""`penstock simulate --prefix-caching`: hits as the trace's ids say, reported in text and JSON."""

import json
from pathlib import Path

import pytest
from penstock_cli.failure import Failure
from penstock_cli.main import app
from penstock_cli.simulate.fleet import SimulationOptions, fleet_of
from penstock_core.timing.builtin_models import time_model
from penstock_pool import load_pool
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


def test_a_prompt_finds_its_shared_blocks_and_a_repeated_one_all_but_the_last(
    files: tuple[str, str, str],
) -> None:
    words = simulated(files, "--prefix-caching", "--block-tokens", "64")
    assert "49.2 % of prompt tokens were found in prefix caches" in words
    assert json.loads(Path(files[2]).read_text())["cached_share"] == (320 + 624) / (3 * 640)


@pytest.mark.parametrize(
    ("caching", "routing", "order"),
    [
        (True, "", "best-fit"),
        (False, "", "round-robin"),
        (None, "", "round-robin"),
        (True, "  routing: {order: prefix}\n", "prefix"),
    ],
)
def test_a_pool_without_an_order_is_routed_by_its_engines_prefix_cache(
    tmp_path: Path, caching: bool | None, routing: str, order: str
) -> None:
    pool = tmp_path / "pool.yaml"
    pool.write_text(POOL + routing)
    assert fleet_of(load_pool(pool), pool, SimulationOptions(prefix_caching=caching)).order == order


def session(*lines: tuple[int, dict[str, object]]) -> str:
    """Turns of one session. Each prompt continues the previous one."""
    return "\n".join(
        json.dumps(
            {"timestamp": at_ms, "input_length": 64 * blocks, "output_length": 5, "session_id": "a"}
            | {"hash_ids": list(range(blocks)), **more}
        )
        for blocks, (at_ms, more) in enumerate(lines, start=4)
    )


def test_the_turns_of_a_session_are_reported_separately(files: tuple[str, str, str]) -> None:
    Path(files[1]).write_text(session((0, {}), (1, {"delay": 2000}), (2, {"delay": 3000})))
    words = simulated(files, "--prefix-caching", "--block-tokens", "64")
    turns = json.loads(Path(files[2]).read_text())["turns"]
    assert [turns[name]["requests"] for name in ("first", "later")] == [1, 2]
    assert [turns[name]["cached_share"] for name in ("first", "later")] == [0.0, (256 + 320) / (320 + 384)]
    assert turns["later"]["ttft_p50_s"] < turns["first"]["ttft_p50_s"]
    assert "First turns of sessions: 1, TTFT p50 " in words


@pytest.mark.parametrize(("flags", "least_s"), [((), 5.0), (("--open-loop",), 0.0)])
def test_a_turn_arrives_after_the_answer_and_think_time_or_at_its_recorded_time(
    files: tuple[str, str, str], flags: tuple[str, ...], least_s: float
) -> None:
    Path(files[1]).write_text(session((0, {}), (1, {"delay": 2000}), (2, {"delay": 3000})))
    rows = Path(files[2]).with_suffix(".csv")
    simulated(files, "--requests", str(rows), *flags)
    arrivals_s = sorted(float(row.split(",")[2]) for row in rows.read_text().splitlines()[1:])
    assert least_s <= arrivals_s[-1] < least_s + 1.0


def test_the_saved_prefill_is_that_of_an_idle_replica(files: tuple[str, str, str]) -> None:
    Path(files[1]).write_text("\n".join([request(0, 640, list(range(10))), request(9, 640, list(range(10)))]))
    simulated(files, "--prefix-caching", "--block-tokens", "64")
    model = time_model("slos-serve-opt-6.7b-a100")
    saved_s = model.prefill_seconds(640) - model.prefill_seconds(16)
    assert json.loads(Path(files[2]).read_text())["saved_prefill_s"] == pytest.approx(saved_s)


def test_without_a_prefix_cache_no_figure_of_it_is_reported(files: tuple[str, str, str]) -> None:
    words = simulated(files)
    assert "prefix caches" not in words
    assert "cached_share" not in json.loads(Path(files[2]).read_text())


def test_blocks_of_another_size_are_noticed(files: tuple[str, str, str]) -> None:
    reported = (
        "request 1 by arrival has 10 hash_ids, but its 640 tokens are 2 blocks of 512; give --block-tokens N"
    )
    with pytest.raises(Failure, match=reported):
        simulated(files, "--prefix-caching")


def test_blocks_that_are_probably_larger_are_noticed(files: tuple[str, str, str]) -> None:
    Path(files[1]).write_text(request(0, 640, list(range(10))))
    warning = "the hash_ids are only 25 % of the prompts; is --block-tokens right?"
    assert warning in " ".join(simulated(files, "--prefix-caching", "--block-tokens", "16").split())
    assert "is --block-tokens right?" not in simulated(files, "--prefix-caching", "--block-tokens", "64")


def test_vllms_own_scheduler_is_refused(files: tuple[str, str, str]) -> None:
    with pytest.raises(Failure, match="vllm-real cannot run with a prefix cache"):
        simulated(files, "--prefix-caching", "--policy", "vllm-real")


def test_without_served_requests_no_prefix_was_found(files: tuple[str, str, str]) -> None:
    Path(files[1]).write_text(request(0, 10**6, []))
    words = simulated(files, "--prefix-caching")
    assert "prefix caches" not in words
    assert json.loads(Path(files[2]).read_text())["cached_share"] is None
