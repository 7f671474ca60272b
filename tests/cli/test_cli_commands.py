"""The command line: exit codes, and one clear line per error."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from penstock_cli.commands.validate import headline
from penstock_cli.main import app, main, run
from penstock_pool import load_pool

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo-pool.yaml"


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def penstock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """The command as `main` runs it, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Done:
        code = run(lambda: app([str(argument) for argument in arguments]))
        return Done(code, *capfd.readouterr())

    return call


Penstock = Callable[..., Done]


def test_the_installed_commands_help_has_examples() -> None:
    command = Path(sys.executable).parent / "penstock"
    done = subprocess.run([str(command), "--help"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0
    for output in ("penstock demo", "penstock up -f examples/demo-pool.yaml", "Exit codes"):
        assert output in done.stdout


def test_an_interrupt_is_reported_as_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    command = typer.Typer()
    command.command()(interrupted)
    assert run(lambda: command([])) == 1
    assert capfd.readouterr().err.splitlines()[-1] == "interrupted"


def test_a_completed_command_exits_with_its_code(capfd: pytest.CaptureFixture[str]) -> None:
    command = typer.Typer()
    command.command()(lambda: None)
    assert run(lambda: command([])) == 0
    assert run(lambda: None) == 0
    assert run(lambda: sys.exit(5)) == 5
    assert run(lambda: sys.exit(None)) == 0
    assert capfd.readouterr().err == ""


def test_main_exits_with_the_commands_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["penstock", "validate", "-f", "none.yaml"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2


def test_without_a_command_help_is_printed_and_no_shell_is_changed(penstock: Penstock) -> None:
    done = penstock()
    assert "First steps:" in done.out + done.err
    assert "completion" not in penstock("--help").out


def test_a_defect_prints_pythons_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr("penstock_cli.commands.validate.load_pool", lambda file: 1 // 0)
    try:
        app(["validate", "-f", "pool.yaml"])
    except ZeroDivisionError as defect:
        sys.excepthook(type(defect), defect, defect.__traceback__)
    assert capfd.readouterr().err.startswith("Traceback (most recent call last):\n")


def test_a_good_pool_is_summarised(penstock: Penstock) -> None:
    done = penstock("validate", "-f", DEMO)
    assert done.code == 0
    assert "is valid" in done.out
    assert "5 × idle prefill" in done.out


def test_a_pools_headline_has_its_number_of_replicas() -> None:
    pool = load_pool(Path(DEMO))
    assert "on 2 replicas" in headline(pool, 2)
    assert "on 1 replica (" in headline(pool, 1)


def test_an_answer_with_its_own_tpot_target_is_shown(penstock: Penstock, tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(DEMO.read_text().replace("tpot: 50ms", "tpot: 50ms, answerTpot: 120ms"))
    assert "50, then 120" in penstock("validate", "-f", path).out


def test_an_invalid_pool_exits_with_2_and_a_line_per_error(penstock: Penstock, tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(DEMO.read_text().replace("tpot: 50ms", "tpot: 50").replace("replicas: 2", "replicas: -1"))
    done = penstock("validate", "-f", path)
    assert done.code == 2
    assert done.err.splitlines() == [
        f"{path}: spec.replicas: -1 is too small; at least 0",
        f'{path}: spec.tiers[1].slo.tpot: "50" has no unit; write 50ms or 0.05s',
    ]


def test_a_pool_scaled_to_zero_needs_a_cluster(penstock: Penstock, tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(DEMO.read_text().replace("replicas: 2", "replicas: 0"))
    assert "on 0 replicas" in penstock("validate", "-f", path).out
    done = penstock("up", "-f", path)
    output = "spec.replicas: 0 is valid only in a cluster; give --replicas"
    assert (done.code, done.err) == (2, f"{path}: {output}\n")


def test_an_invalid_trace_exits_with_2_and_names_its_line(penstock: Penstock, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,tier\n0,1,1,a\n1,one,1,a\n")
    done = penstock("replay", "--trace", path, "--url", "http://127.0.0.1:9")
    assert done.code == 2
    assert done.err == f'{path}: line 3, column 2 (prompt_tokens): "one" is not a whole number\n'


@pytest.mark.parametrize(
    ("arguments", "code", "output"),
    [
        (("replay", "--trace", "none.csv", "--url", "http://x"), 2, "none.csv: No such file or directory"),
        (
            ("replay", "--trace", "none.csv", "--url", "http://x", "--rate", "0"),
            2,
            "--rate 0: must be above 0",
        ),
        (
            ("replay", "--trace", "none.csv", "--url", "http://x", "--tier-map", "code"),
            2,
            '--tier-map: "code" is not TRACE=POOL; write for example code=coder',
        ),
        (("up", "-f", "none.yaml"), 2, "none.yaml: no such file"),
        (
            ("up", "-f", DEMO, "--engine", "vllm"),
            2,
            "--engine vllm: found no vLLM in this Python environment or on PATH; give the Python that has it "
            "with --vllm-python or PENSTOCK_VLLM_PYTHON",
        ),
        (
            ("up", "-f", DEMO, "--engine", "vllm", "--vllm-python", "/bin/false"),
            2,
            "--vllm-python /bin/false: not a working Python",
        ),
        (
            ("up", "-f", DEMO, "--engine", "vllm", "--vllm-python", sys.executable),
            2,
            f"--vllm-python {sys.executable}: has no vLLM; pip install vllm there",
        ),
        (
            ("up", "-f", DEMO, "--engine", "vllm", "--model", "/nowhere"),
            2,
            "--model /nowhere: not a model; a model's folder has config.json",
        ),
        (
            ("up", "-f", DEMO, "--engine", "localhost"),
            2,
            '--engine: "localhost" is not a URL; write for example http://10.0.0.5:8000',
        ),
        (
            ("up", "-f", DEMO, "--engine", "http://127.0.0.1:9"),
            1,
            "--engine http://127.0.0.1:9: no engine answers there ([Errno 111] Connection refused)",
        ),
        (
            ("up", "-f", DEMO, "--engine", "http://127.0.0.1:9", "--replicas", "2"),
            2,
            "--replicas 2: --engine lists 1 engines",
        ),
    ],
)
def test_a_command_that_fails_prints_one_line(
    penstock: Penstock, arguments: tuple[object, ...], code: int, output: str
) -> None:
    done = penstock(*arguments)
    assert (done.code, done.err) == (code, output + "\n")


def test_an_unknown_policy_is_refused_with_the_known_ones(penstock: Penstock) -> None:
    done = penstock("up", "-f", DEMO, "--policy", "vlm")
    assert done.code == 2
    assert 'spec.scheduling.policy: "vlm" is not a policy; one of ' in done.err
    assert "did you mean vllm?" in done.err


def test_a_pool_of_real_engines_needs_their_urls(penstock: Penstock, tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(DEMO.read_text().replace("type: simulated", "type: openai"))
    done = penstock("up", "-f", path)
    assert done.code == 2
    assert done.err.startswith(f'{path}: spec.engine.type: "openai" is not started by this command; ')


def test_a_taken_port_is_one_line(penstock: Penstock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = penstock("up", "-f", DEMO, "--port", port)
    assert done.code == 1
    assert done.err.splitlines()[-1] == f"port {port} on 127.0.0.1 is taken; choose another with --port"


def test_the_demo_names_the_folder_that_it_needs(penstock: Penstock) -> None:
    done = penstock("demo")
    assert done.code == 1
    assert done.err == (
        "examples/demo-pool.yaml: no such file; "
        "run this in the project's folder, or give --file and --trace\n"
    )
