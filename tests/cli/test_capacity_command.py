"""`penstock capacity` as a user meets it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import orjson
import pytest
from penstock_cli.capacity import progress
from penstock_cli.capacity.progress import share_done, show_progress
from penstock_cli.capacity.run import SearchProgress
from penstock_cli.capacity.search import CapacityResult
from penstock_cli.capacity.trial import Trial, TrialResult
from penstock_cli.failure import Failure
from penstock_cli.main import app, run
from penstock_simulator.real_vllm.location import VllmMissing
from penstock_simulator.simulation.replica import StuckPolicy
from rich.console import Console

FIXED_KEYS = ["scenario", "policy", "replicas", "attainment_target", "capacity_rps_per_replica"]

SESSIONS = {"coder": 905, "toolllm": 436}

Call = Callable[..., int]


@pytest.fixture
def penstock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """The command in an empty folder, its simulations replaced by a world in which 2 requests/s attain."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("penstock_cli.commands.capacity.run_trial", two_a_second)

    def call(*arguments: object) -> int:
        return run(lambda: app(["capacity", *map(str, arguments), "--jobs", "1"]))

    return call


def two_a_second(trial: Trial) -> TrialResult:
    requests = SESSIONS[trial.scenario] * trial.replicas
    missed = round(requests * 0.1 * trial.rate_rps / 2.0)
    return TrialResult(requests, missed, missed <= trial.most_misses, (("coder", trial.rate_rps / 2, 0.9),))


def test_the_json_is_a_list_with_the_documented_keys(penstock: Call) -> None:
    policies = "sola,vllm,oracle"
    assert (
        penstock("--scenario", "coder,toolllm", "--policy", policies, "--replicas", 2, "--json", "o.json")
        == 0
    )
    rows = orjson.loads(Path("o.json").read_bytes())
    assert [(row["scenario"], row["policy"]) for row in rows] == [
        (scenario, policy) for scenario in ("coder", "toolllm") for policy in policies.split(",")
    ]
    for row in rows:
        assert list(row)[: len(FIXED_KEYS)] == FIXED_KEYS
        assert row["replicas"] == 2
        assert row["attainment_target"] == 0.9
        assert row["capacity_rps_per_replica"] == pytest.approx(2.0, rel=0.021)


def test_the_same_search_has_the_same_result(penstock: Call) -> None:
    for name in ("a.json", "b.json"):
        assert penstock("--scenario", "coder", "--policy", "vllm", "--json", name, "--resume", "m.jsonl") == 0
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()


def test_standard_output_has_only_json(penstock: Call, capfd: pytest.CaptureFixture[str]) -> None:
    assert penstock("--scenario", "coder", "--policy", "sola", "--json", "-") == 0
    out, err = capfd.readouterr()
    assert [row["policy"] for row in orjson.loads(out)] == ["sola"]
    assert out.endswith("]\n")
    assert not out.endswith("\n\n")
    assert "coder" in err


def test_the_table_has_the_best_policy_first_and_its_tuned_setting(
    penstock: Call, capfd: pytest.CaptureFixture[str]
) -> None:
    assert penstock("--scenario", "coder", "--policy", "vllm,oracle", "--lengths", "known") == 0
    out = capfd.readouterr().out
    assert "90 % of requests meet every target: 1 replica, known lengths, measured timing" in " ".join(
        out.split()
    )
    assert [line.split()[1] for line in out.splitlines() if line.startswith("coder")] == ["oracle", "vllm"]
    assert "1024 tokens a step" in out


def test_the_figure_is_written(penstock: Call) -> None:
    assert penstock("--scenario", "coder", "--policy", "sola,oracle", "--plot", "o.svg") == 0
    picture = Path("o.svg").read_text()
    for name in ("attainment-coder-sola", "bound-coder", "plane-coder · coder-sola"):
        assert f'id="{name}"' in picture


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (
            ["--scenario", "chat", "--policy", "vllm"],
            "--scenario chat: unknown scenario 'chat'; known: chatb",
        ),
        (
            ["--scenario", "coder", "--policy", "best"],
            "--policy best: no policy is called 'best'; there are: ",
        ),
        (
            ["--scenario", "coder", "--policy", "vllm", "--order", "x"],
            '--order "x": must be one of round-robin',
        ),
        (
            ["--scenario", "coder", "--policy", "vllm", "--plot", "o.pdf"],
            "--plot o.pdf: the suffix must be .svg or .png",
        ),
        (["--scenario", ",", "--policy", "vllm"], "--scenario: is empty; give at least one name"),
        (
            ["--scenario", "coder,swe", "--policy", "vllm,oracle"],
            "--policy oracle: does not support prefix caches, which scenario swe uses",
        ),
        (
            ["--scenario", "coder,mixed", "--policy", "vllm", "--sessions", "5"],
            "--sessions 5: no scenario of coder, mixed has recorded sessions",
        ),
        (
            ["--scenario", "coder", "--policy", "vllm", "--block-tokens", "16"],
            "--block-tokens 16: no scenario of coder has prompts with hash ids",
        ),
        (
            ["--scenario", "coder", "--policy", "vllm", "--json", "no/where.json"],
            "--json no/where.json: the directory no does not exist",
        ),
        (["--scenario", "coder", "--policy", "vllm", "--json", "."], "--json .: is a directory"),
        (
            ["--scenario", "coder", "--policy", "vllm", "--plot", "no/o.svg"],
            "--plot no/o.svg: the directory no does not exist",
        ),
    ],
    ids=[
        *("scenario", "policy", "order", "plot", "nothing", "prefixes"),
        *("sessions", "blocks", "no directory", "a directory", "plot without directory"),
    ],
)
def test_bad_input_is_one_clear_line(
    penstock: Call, capfd: pytest.CaptureFixture[str], arguments: list[str], output: str
) -> None:
    assert penstock(*arguments) == 2
    error = capfd.readouterr().err
    assert error.startswith(output)
    assert error.count("\n") == 1


def test_a_table_that_cannot_be_written_is_one_line(
    penstock: Call, capfd: pytest.CaptureFixture[str]
) -> None:
    assert penstock("--scenario", "coder", "--policy", "sola", "--json", "/dev/full") == 1
    assert capfd.readouterr().err.splitlines()[-1] == "--json /dev/full: No space left on device"


def test_names_may_be_separated_by_spaces_and_count_once(penstock: Call) -> None:
    assert penstock("--scenario", " coder ,, coder", "--policy", "sola, oracle", "--json", "o.json") == 0
    rows = orjson.loads(Path("o.json").read_bytes())
    assert [(row["scenario"], row["policy"]) for row in rows] == [("coder", "sola"), ("coder", "oracle")]
    assert (rows[0]["order"], rows[0]["seeds"], rows[0]["lengths"]) == ("round-robin", 3, "predicted")
    assert rows[0]["truth"] == "measured"


def test_json_on_standard_output_is_the_only_output(
    penstock: Call, capfd: pytest.CaptureFixture[str]
) -> None:
    assert penstock("--scenario", "coder", "--policy", "oracle", "--json", "-") == 0
    shown = capfd.readouterr()
    assert len(orjson.loads(shown.out)) == 1
    assert shown.out.startswith("[\n  {") and shown.out.endswith("]\n") and not shown.out.endswith("\n\n")
    assert "90 % of requests meet every target" in shown.err


def test_with_a_json_file_the_table_and_its_explanation_stay_on_standard_output(
    penstock: Call, capfd: pytest.CaptureFixture[str]
) -> None:
    assert penstock("--scenario", "coder", "--policy", "oracle", "--json", "o.json") == 0
    assert Path("o.json").read_bytes().endswith(b"]\n")
    out = " ".join(capfd.readouterr().out.split())
    assert "90 % of requests meet every target" in out
    assert "Each capacity was confirmed by complete runs of 3 samples of its scenario" in out


@pytest.mark.parametrize(
    ("error", "code", "output"),
    [
        (StuckPolicy("no batch"), 1, "no batch"),
        (VllmMissing(), 2, "policy vllm-real needs vLLM in"),
    ],
    ids=["a policy that is stuck", "vLLM is missing"],
)
def test_a_simulation_that_cannot_run_is_one_line(
    *,
    penstock: Call,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    output: str,
) -> None:
    def failing(trial: Trial) -> TrialResult:
        raise error

    monkeypatch.setattr("penstock_cli.commands.capacity.run_trial", failing)
    assert penstock("--scenario", "coder", "--policy", "sola") == code
    assert capfd.readouterr().err.splitlines()[-1].startswith(output)


def test_a_policy_that_attains_at_every_rate_is_a_failure(
    penstock: Call, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("penstock_cli.commands.capacity.run_trial", lambda _: TrialResult(905, 0, True))
    assert penstock("--scenario", "coder", "--policy", "sola") == 1
    assert "requests/s still attain" in capfd.readouterr().err


@pytest.mark.parametrize(("cores", "jobs", "used"), [(4, None, 4), (None, None, 1), (4, 2, 2)])
def test_a_search_uses_all_cores_or_the_given_number(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, jobs: int | None, used: int
) -> None:
    requested: list[int] = []

    def run_all(searches: object, work: object, jobs: int, *_: object, **__: object) -> list[CapacityResult]:
        requested.append(jobs)
        raise StuckPolicy

    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr("penstock_cli.commands.capacity.run_all", run_all)
    flags = ["capacity", "--scenario", "coder", "--policy", "sola"]
    assert run(lambda: app([*flags, *(["--jobs", str(jobs)] if jobs else [])])) == 1
    assert requested == [used]


def test_progress_of_a_search_is_on_standard_error(
    penstock: Call, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    assert penstock("--scenario", "coder", "--policy", "oracle") == 0
    shown = capfd.readouterr()
    assert "of 1 capacities," in shown.err and "simulations" not in shown.out


def test_the_completed_share_grows_to_one() -> None:
    seen = [
        share_done(SearchProgress(trials=trials, searches=ended), 4)
        for trials, ended in ((0, 0), (10, 0), (30, 1), (60, 2), (90, 3), (120, 4))
    ]
    assert seen[0] == 0.0
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_without_a_terminal_progress_is_in_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with show_progress(Console(), 4, "capacities") as watch:
        watch.trials, watch.searches = 60, 2
        watch.ended()
    assert capsys.readouterr().out.startswith("2 of 4 capacities, 60 simulations, about 0 s left")


@pytest.mark.parametrize(
    ("flag", "outside", "inside"),
    [
        ("--replicas", ["0", "65"], ["1", "64"]),
        ("--attainment", ["0.009", "0.9991"], ["0.01", "0.999"]),
        ("--seeds", ["0", "101"], ["1", "100"]),
        ("--block-tokens", ["0"], ["1"]),
    ],
)
def test_a_flag_accepts_values_within_its_bounds(
    monkeypatch: pytest.MonkeyPatch, flag: str, outside: list[str], inside: list[str]
) -> None:
    def stopped(scenarios: str, policies: str, conditions: object) -> None:
        raise Failure("asked")

    monkeypatch.setattr("penstock_cli.commands.capacity.questions_of", stopped)
    flags = ["capacity", "--scenario", "coder", "--policy", "sola", flag]
    assert {run(partial(app, [*flags, value])) for value in outside} == {2}
    assert {run(partial(app, [*flags, value])) for value in inside} == {1}
