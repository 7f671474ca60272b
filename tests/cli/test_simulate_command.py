"""`penstock simulate` as a user meets it: a table, JSON, a CSV line for each request, and clear errors."""

import csv
import json
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from penstock_cli.commands.simulate import planning
from penstock_cli.failure import Failure
from penstock_cli.main import app, run
from penstock_cli.replay.report import PlannerTimes, Report
from penstock_cli.replay.schedule import Schedule
from penstock_cli.replay.tally import ReplayTally
from penstock_cli.simulate import progress
from penstock_cli.simulate.autoscaling import autoscaler_of
from penstock_cli.simulate.fleet import SimulationOptions, fleet_of
from penstock_cli.simulate.run import SimulationResult
from penstock_cli.simulate.run import run as simulate_run
from penstock_core.domain.slo import Tier
from penstock_core.timing.builtin_models import kv_cache_tokens, time_model
from penstock_core.timing.speculation import Speculation
from penstock_pool import parse_pool
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import Fleet, LengthKnowledge, SimulatedOutcome
from rich.console import Console

TIER_KEYS = {
    "requests",
    "attainment",
    "attained_admitted",
    "attained_promoted",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "tpot_p99_s",
    "best_effort",
    "rejected",
}
KEYS = {
    "policy",
    "replicas",
    "rate",
    "requests",
    "requests_with_targets",
    "attainment",
    "attained_admitted",
    "attained_promoted",
    "admitted_attainment",
    "goodput_rps",
    "tiers",
    "planner_ms",
}
HEADER = "id,tier,arrival_s,prompt_tokens,output_tokens,verdict,replica,hops,ttft_s,tpot_s,e2e_s,met"

POOL = """
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {name: small}
spec:
  model: {name: m}
  engine: {type: simulated, timeModel: slos-serve-opt-6.7b-a100, kvCacheTokens: 16000}
  replicas: 2
  tiers:
  - {name: chat, slo: {ttft: {slowdown: 5}, tpot: 100ms}}
  - {name: coder, slo: {ttft: 1s, tpot: 60ms}}
  - {name: batch, bestEffort: true}
  routing: {maxHops: 2, backup: reject}
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str


Simulate = Callable[..., Done]


@pytest.fixture
def simulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Simulate:
    """The command in a folder with a pool file and a trace of 60 requests in 5 seconds."""
    monkeypatch.chdir(tmp_path)
    tiers = ("chat", "coder", "batch")
    rows = [f"{i / 12:.3f},{200 + 37 * i % 400},{10 + 7 * i % 40},{tiers[i % 3]}" for i in range(60)]
    Path("pool.yaml").write_text(POOL)
    Path("trace.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,tier", *rows, ""]))

    def call(*arguments: object) -> Done:
        flags = ["simulate", "-f", "pool.yaml", "--trace", "trace.csv", *map(str, arguments)]
        code = run(lambda: app(flags))
        return Done(code, *capfd.readouterr())

    return call


def test_the_json_has_the_keys_of_a_replay(simulate: Simulate) -> None:
    done = simulate("--json", "out.json")
    assert done.code == 0
    assert "met their tier's SLO" in done.out
    found = json.loads(Path("out.json").read_text())
    assert set(found) == KEYS
    assert set(found["planner_ms"]) == {"p50", "p99", "max"}
    assert set(found["tiers"]) == {"chat", "coder", "batch"}
    assert all(set(tier) == TIER_KEYS for tier in found["tiers"].values())
    assert (found["policy"], found["replicas"], found["requests"]) == ("slos-serve", 2, 60)
    assert found["requests_with_targets"] == 40
    assert found["rate"] == pytest.approx(60 / 4.917)
    assert 0 < found["planner_ms"]["p50"] <= found["planner_ms"]["p99"] <= found["planner_ms"]["max"]


def test_flags_replace_the_file(simulate: Simulate) -> None:
    done = simulate("--json", "-", "--policy", "vllm", "--replicas", 1, "--rate", 6, "--duration", 5)
    found = json.loads(done.out)
    assert done.code == 0
    assert (found["policy"], found["replicas"]) == ("vllm", 1)
    assert found["rate"] == pytest.approx(6, rel=0.05)
    assert 25 <= found["requests"] <= 35


def test_every_request_has_a_row(simulate: Simulate) -> None:
    assert simulate("--requests", "rows.csv", "--replicas", 1, "--rate", 60).code == 0
    lines = Path("rows.csv").read_text().splitlines()
    assert lines[0] == HEADER
    rows = list(csv.DictReader(lines))
    assert sorted(int(row["id"]) for row in rows) == list(range(60))
    assert {row["verdict"] for row in rows} == {"admitted", "best-effort", "rejected"}
    for row in rows:
        served = row["verdict"] != "rejected"
        assert bool(row["ttft_s"]) == bool(row["e2e_s"]) == bool(row["replica"]) == served
        assert row["met"] in {"true", "false"}
        assert served or row["met"] == "false"


@pytest.mark.parametrize(
    "flags",
    [(), ("--truth", "exact", "--lengths", "known")],
    ids=["measured and predicted", "exact and known"],
)
def test_the_same_seed_gives_the_same_result(simulate: Simulate, flags: tuple[str, ...]) -> None:
    def files(seed: int) -> tuple[dict[str, Any], str]:
        assert simulate("--json", "o.json", "--requests", "o.csv", "--seed", seed, *flags).code == 0
        found = json.loads(Path("o.json").read_text())
        del found["planner_ms"]
        return found, Path("o.csv").read_text()

    first, again, other = files(3), files(3), files(4)
    assert first == again
    assert (first[1] == other[1]) == bool(flags)  # nothing is random where everything is known


def test_a_request_longer_than_the_engine_allows_fails(simulate: Simulate) -> None:
    Path("trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,5\n1,9000,5\n")
    done = simulate("--requests", "rows.csv")
    rows = {row["id"]: row for row in csv.DictReader(Path("rows.csv").read_text().splitlines())}
    assert (rows["0"]["verdict"], rows["0"]["tier"], rows["1"]["verdict"]) == ("admitted", "chat", "failed")
    assert "failed: 1 × longer than spec.engine.maxModelLen or the KV cache" in done.out


@pytest.mark.parametrize(
    ("before", "after", "flags", "output"),
    [
        ("", "", ["--policy", "slo-serve"], 'pool.yaml: spec.scheduling.policy: "slo-serve" is not a policy'),
        (
            "simulated, timeModel: slos-serve-opt-6.7b-a100",
            "vllm",
            [],
            "spec.engine.timeModel: auto needs a live engine",
        ),
        ("backup: reject", "backup: offload, pool: b", [], 'spec.routing.backup: "offload" is not supported'),
        ("replicas: 2", "replicas: 65", [], "spec.replicas: 65 is above the limit of 64"),
        ("replicas: 2", "replicas: 0", [], "spec.replicas: 0 is valid only in a cluster"),
        ("", "", ["--replicas", "65"], "--replicas"),
        ("", "", ["--rate", "0"], "--rate 0: must be above 0"),
        ("", "", ["--trace", "none.csv"], "none.csv: No such file or directory"),
        ("", "", ["--requests", "no/where.csv"], "--requests no/where.csv: No such file or directory"),
        ("name: coder", "name: code", [], 'trace.csv: tier "coder" is not one of chat, code, batch'),
    ],
    ids=["policy", "auto", "offload", "pool's replicas", "none", "replicas", "rate", "trace", "rows", "tier"],
)
def test_invalid_input_exits_with_2_and_names_the_problem(
    simulate: Simulate, before: str, after: str, flags: list[str], output: str
) -> None:
    Path("pool.yaml").write_text(POOL.replace(before, after) if before else POOL)
    done = simulate(*flags)
    assert done.code == 2
    assert output in done.err


def test_a_tier_of_the_trace_can_be_renamed(simulate: Simulate) -> None:
    Path("pool.yaml").write_text(POOL.replace("name: coder", "name: code"))
    assert simulate("--tier-map", "coder=code").code == 0


@pytest.mark.parametrize("flag", ["--replicas", "--startup", "--block-tokens"])
def test_a_flag_refuses_values_below_one(simulate: Simulate, flag: str) -> None:
    assert [simulate(flag, value).code for value in ("0", "1")] == [2, 0]


def test_without_flags_the_pool_is_simulated_unchanged(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def run(*conditions: object, **named: object) -> None:
        asked.append((conditions, named))
        raise Failure("asked")

    monkeypatch.setattr("penstock_cli.commands.simulate.run", run)
    scaled = POOL + "  autoscaling: {minReplicas: 1, maxReplicas: 3}\n"
    Path("pool.yaml").write_text(scaled)
    assert simulate().code == 1
    (((fleet, schedule, seed, rows, _), named),) = asked
    assert (fleet.policy, fleet.replicas, fleet.max_hops, fleet.kv_tokens) == ("slos-serve", 2, 2, 16000)
    assert (fleet.truth, fleet.lengths) == (TruthKind.MEASURED, LengthKnowledge.PREDICTED)
    assert not fleet.prefix_caching and fleet.speculation is None
    assert schedule == Schedule(Path("trace.csv"), 1.0, None, "", {})
    assert (seed, rows, named["hash_id_tokens"], named["plot"]) == (0, None, 512, None)
    assert named["autoscaler"].startup_s == 90.0


def test_an_autoscaler_of_kubernetes_is_not_simulated() -> None:
    document = yaml.safe_load(POOL)
    document["spec"]["autoscaling"] = {"minReplicas": 1, "maxReplicas": 3, "by": "hpa"}
    assert autoscaler_of(parse_pool(document, "pool.yaml"), 1.0) is None


def test_an_engine_has_the_pools_memory_and_drafts() -> None:
    document = yaml.safe_load(POOL)
    del document["spec"]["engine"]["kvCacheTokens"]
    document["spec"]["engine"]["speculation"] = {"maxTokens": 3, "acceptance": 0.75}
    fleet = fleet_of(parse_pool(document, "pool.yaml"), Path("pool.yaml"), SimulationOptions())
    assert fleet.kv_tokens == kv_cache_tokens("slos-serve-opt-6.7b-a100")
    assert fleet.speculation == Speculation(3, 0.75)


def test_the_title_and_the_planning_times_are_printed(simulate: Simulate) -> None:
    assert simulate().out.splitlines()[0].strip() == "trace.csv on small: slos-serve, 2 replicas"
    assert (
        simulate("--replicas", 1).out.splitlines()[0].strip() == "trace.csv on small: slos-serve, 1 replica"
    )
    times = PlannerTimes(0.125, 1.5, 2.25)
    report = Report("slos-serve", 1, 1.0, ReplayTally(), times)
    assert planning(SimulationResult(report, 0.0125)) == (
        "Planning time: admission p50 0.12, p99 1.50, max 2.25 ms; steps 1.25 % of their iterations."
    )


@pytest.mark.parametrize(("policy", "warmed_up"), [("slos-serve", 1), ("vllm-real", 0)])
def test_a_policy_is_warmed_up_before_its_decisions_are_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, policy: str, warmed_up: int
) -> None:
    done: list[str] = []
    monkeypatch.setattr("penstock_cli.simulate.run.warm_up", lambda *_: done.append("warm-up"))

    def simulated(*_: object) -> Iterator[SimulatedOutcome]:
        done.append("run")
        return iter(())

    monkeypatch.setattr("penstock_cli.simulate.run.simulate", simulated)
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n")
    fleet = Fleet(policy, time_model("llama-3-8b-a100"), 4096, {"batch": Tier("batch")}, "batch")
    simulate_run(fleet, Schedule(trace), 0, None, Console(quiet=True))
    assert done == ["warm-up"] * warmed_up + ["run"]


def test_progress_shows_the_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr("penstock_cli.simulate.progress.monotonic", lambda: float(next(clock)))
    console = Console(width=120, record=True, force_terminal=False, quiet=False, file=StringIO())
    assert list(progress.show_progress(range(4), console, "simulating", 4)) == [0, 1, 2, 3]
    assert console.export_text().splitlines() == [
        "simulating: 2 of 4 requests, about 12 s left",
        "simulating: 4 of 4 requests, about 0 s left",
    ]


def test_a_terminal_gets_a_bar_that_is_drawn_at_intervals_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter([8.0, 8.0, 8.5, 9.0, 9.0, 9.5])
    monkeypatch.setattr(progress, "monotonic", lambda: next(now))
    monkeypatch.setattr(progress, "REFRESH_S", 1.0)
    console = Console(width=120, record=True, force_terminal=True, file=StringIO())
    threads = threading.active_count()
    for item in progress.show_progress(range(4), console, "simulating", 4):
        assert threading.active_count() == threads, "it would take time of the processor"
        assert item in range(4)
    shown = console.export_text()
    assert [f"{done}/4 requests" in shown for done in range(5)] == [True, True, False, True, True]
