"""The parts of the GPU benchmark that need no GPU: tried rates, requests, journal and pages."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gpu import device
from gpu.__main__ import main
from gpu.journal import Journal, digest
from gpu.load import SINGLE, LoadOptions, fitted, guess_rps, requests, write_trace
from gpu.page import SearchResult, as_json, as_page, best_plain
from gpu.search import STEP, Bracket, bracket_of, given, rates
from gpu.ways import MEASURED, ServingWay, Target, pool_document
from penstock_cli.local.vllm_engine import VllmEngine
from penstock_cli.traces import read_trace
from penstock_core.timing.builtin_models import BUILTINS, time_model
from penstock_pool import parse_pool
from penstock_simulator.arrival import Arrival
from penstock_simulator.scenarios import SCENARIOS

LOAD = LoadOptions(seconds=20.0, scale=1.0, context_tokens=1024, timeout_s=60.0)
TARGET = Target(VllmEngine(Path("python"), "m"), "served", ("--enforce-eager",), {}, 2, 1024, 64)


def tried(capacity_rps: float, guess_rps: float, bar_rps: float = 0.0) -> dict[float, bool]:
    """Return the rates of a search for which every rate up to the capacity attains."""
    requested, seen = rates(guess_rps, bar_rps), dict[float, bool]()
    rate_rps = next(requested)
    try:
        while True:
            seen[rate_rps] = rate_rps <= capacity_rps
            rate_rps = requested.send(seen[rate_rps])
    except StopIteration:
        return seen


@pytest.mark.parametrize("capacity_rps", [0.3, 4.0, 4.1, 90.0])
def test_a_search_brackets_the_capacity_closely(capacity_rps: float) -> None:
    seen = tried(capacity_rps, guess_rps=4.0)
    low_rps, high_rps = bracket_of(seen)
    assert high_rps is not None
    assert low_rps <= capacity_rps < high_rps <= low_rps * STEP * 1.01
    assert len(seen) < 20


def test_a_search_ends_if_no_rate_attains() -> None:
    assert bracket_of(tried(0.0, guess_rps=4.0)).low_rps == 0.0


def test_a_rival_below_the_capacity_to_beat_takes_one_trial() -> None:
    assert tried(4.0, guess_rps=1.0, bar_rps=4.0) == {4.2: False}


def test_a_rival_above_the_capacity_to_beat_is_searched_further() -> None:
    assert bracket_of(tried(9.0, guess_rps=1.0, bar_rps=4.0)).low_rps == pytest.approx(9.0, rel=0.05)


def test_a_passed_rate_above_a_failed_one_does_not_count() -> None:
    assert bracket_of({1.0: True, 2.0: False, 3.0: True}) == Bracket(1.0, 2.0)


def test_given_rates_are_all_tried_in_order() -> None:
    requested = given([8.0, 16.0])
    assert (next(requested), requested.send(False)) == (8.0, 16.0)
    with pytest.raises(StopIteration):
        requested.send(True)


def test_requests_arrive_at_their_rate_within_a_trial() -> None:
    requested = requests(SCENARIOS["coder"], 30.0, LOAD)
    assert requested[-1].arrival_s < LOAD.seconds
    assert len(requested) == pytest.approx(30.0 * LOAD.seconds, rel=0.4)
    assert all(before.arrival_s <= after.arrival_s for before, after in pairwise(requested))


@pytest.mark.parametrize(
    ("prompt", "output", "scale", "left"),
    [(100, 50, 1.0, (100, 50)), (100, 50, 0.1, (10, 5)), (1, 1, 0.1, (1, 1)), (9000, 9000, 1.0, (1022, 1))],
)
def test_a_request_is_scaled_and_fits(prompt: int, output: int, scale: float, left: tuple[int, int]) -> None:
    made = fitted(Arrival("a", 0.0, "chat", prompt, output), LOAD._replace(scale=scale))
    assert (made.prompt_tokens, made.output_tokens) == left


@pytest.mark.parametrize("name", BUILTINS)
def test_a_search_starts_at_a_rate_that_an_engine_can_serve(name: str) -> None:
    assert 0.05 < guess_rps(SCENARIOS["coder"], time_model(name), LOAD) < 100


def test_a_trace_is_read_by_replay(tmp_path: Path) -> None:
    requested = requests(SCENARIOS["chatbot"], 5.0, LOAD)
    write_trace(tmp_path / "trace.csv", requested)
    assert [(r.prompt_tokens, r.output_tokens, r.tier) for r in read_trace(tmp_path / "trace.csv")] == [
        (a.prompt_tokens, a.output_tokens, a.tier) for a in requested
    ]


def test_sessions_cannot_be_sent_as_a_trace() -> None:
    assert {"coder", "chatbot", "mixed"} <= set(SINGLE)
    assert "toolllm" not in SINGLE


@pytest.mark.parametrize("scenario", SINGLE)
def test_a_scenarios_pool_is_valid(scenario: str) -> None:
    way = ServingWay(2048, "slos-serve")
    pool = parse_pool(pool_document(TARGET, way, SCENARIOS[scenario].tiers, MEASURED), "bench")
    assert {name: tier.slo for name, tier in pool.tiers().items()} == {
        name: tier.slo for name, tier in SCENARIOS[scenario].tiers.items()
    }
    assert (pool.spec.scheduling.max_batch_tokens, pool.spec.engine.tensor_parallel_size) == (2048, 2)


def test_a_journal_continues_after_a_stop(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    Journal(path).add("vLLM", "coder", 4.0, {"attainment": 0.95})
    with path.open("a") as file:
        file.write('{"way": "vLLM", "scena')  # stopped while it wrote
    journal = Journal(path)
    assert journal.get("vLLM", "coder", 4.0) == {"attainment": 0.95}
    assert journal.get("vLLM", "coder", 5.0) is None
    assert journal.get("vLLM", "chatbot", 4.0) is None


def test_each_set_of_conditions_has_its_own_journal() -> None:
    assert digest({"model": "a"}) == digest({"model": "a"}) != digest({"model": "b"})


def test_the_page_compares_with_the_best_of_vllm() -> None:
    found = [
        SearchResult("coder", ServingWay(8192), Bracket(4.0, 4.2), True, {4.0: report(0.93)}),
        SearchResult("coder", ServingWay(512), Bracket(5.0, 5.2), True, {5.0: report(0.92)}),
        SearchResult("coder", ServingWay(2048), Bracket(0.0, 5.25), True, {}),
        SearchResult(
            "coder", ServingWay(8192, "slos-serve"), Bracket(10.0, None), False, {10.0: report(0.95, 0.99)}
        ),
    ]
    best = best_plain(found, "coder")
    assert best is not None
    assert best.way == ServingWay(512)
    page = as_page("# Head", SCENARIOS["coder"].tiers, found)
    assert "coder: Penstock, slos-serve carries 2.00 times vLLM, 512 tokens a step." in page
    assert "| coder | Penstock, slos-serve | 10 | –, time was up | 95.0 | 400 | 60 |" in page
    assert "| coder | vLLM, 2048 tokens a step | below 5.25 | 5.25 | – | – | – |" in page
    assert "| scenario | way | 4/s | 5/s | 10/s |" in page
    assert "| coder | vLLM, 512 tokens a step | – | 92.0 | – |" in page
    assert "| coder | Penstock, slos-serve | – | – | 95.0 (99.0 of admitted) |" in page
    rows = as_json({"model": "m"}, found)["capacities"]
    assert [row["capacity_rps"] for row in rows] == [4.0, 5.0, 0.0, 10.0]
    assert rows[3]["trials"] == [{"rate_rps": 10.0, **report(0.95, 0.99)}]


def test_without_a_gpu_the_benchmark_reports_it_and_writes_no_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(device, "QUERY", [str(tmp_path / "nvidia-smi")])
    monkeypatch.setattr("gpu.__main__.LOCAL", tmp_path / "local")
    monkeypatch.setattr("sys.argv", ["bench-gpu"])
    main()
    assert capsys.readouterr().out.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_gpus_are_read_from_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = "NVIDIA H100 80GB HBM3, 81559 MiB, 580.65.06\n"
    monkeypatch.setattr(device, "QUERY", ["printf", "%s", reported])
    assert device.gpus() == [reported.strip()]


def report(attainment: float, admitted: float | None = None) -> dict[str, Any]:
    tails = {"ttft_p99_s": 0.4, "tpot_p99_s": 0.06}
    return {
        "attainment": attainment,
        "admitted_attainment": attainment if admitted is None else admitted,
        "requests": 100,
        "tiers": {"coder": tails, "none": dict.fromkeys(tails)},
    }
