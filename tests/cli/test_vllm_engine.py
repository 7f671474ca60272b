"""Where vLLM is found, and how it is started."""

from pathlib import Path

import pytest
from penstock_cli.failure import Failure
from penstock_cli.local import vllm_engine as found_by
from penstock_cli.local.vllm_engine import PYTHON_VARIABLE, VllmEngine, argv, environment, vllm_engine
from penstock_pool import Pool, parse_pool
from penstock_runtime.engine_key import VARIABLE


def pool_with(source: object = None, **engine: object) -> Pool:
    document = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": "tests"},
        "spec": {
            "model": {"name": "served"} | ({} if source is None else {"source": source}),
            "engine": {"type": "vllm", "timeModel": "llama-3-8b-a100", "maxModelLen": 2048, **engine},
            "tiers": [{"name": "chat", "slo": {"ttft": "10s", "tpot": "5s"}}],
        },
    }
    return parse_pool(document, "pool.yaml")


def python_that_prints(folder: Path, text: str) -> Path:
    """Create a Python interpreter that prints `text`."""
    folder.mkdir(parents=True)
    python = folder / "python"
    python.write_text(f"#!/bin/sh\necho '{text}'\n")
    python.chmod(0o755)
    return python


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Hide any installed vLLM from the tests. Return the folder on PATH."""
    folder = tmp_path / "on-path"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    monkeypatch.setattr(found_by, "find_spec", lambda name: None)
    return folder


def test_the_vllm_on_path_leads_to_its_own_python(nowhere: Path, tmp_path: Path) -> None:
    python = python_that_prints(tmp_path / "venv", "[]")
    program = python.with_name("vllm")
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (nowhere / "vllm").symlink_to(program)
    assert vllm_engine(pool_with(), None, None) == VllmEngine(python, "served")


def test_the_variable_precedes_path_and_the_flag_precedes_both(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, flagged = (python_that_prints(tmp_path / name, "[]") for name in ("named", "flagged"))
    monkeypatch.setenv(PYTHON_VARIABLE, str(named))
    monkeypatch.setattr(found_by, "find_spec", lambda name: name)
    assert vllm_engine(pool_with(), None, None).python == named
    assert vllm_engine(pool_with(), flagged, None).python == flagged


def test_a_vllm_of_this_environment_needs_no_path(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    this = python_that_prints(nowhere / "this", "[]")
    monkeypatch.setattr(found_by, "find_spec", lambda name: name)
    monkeypatch.setattr("sys.executable", str(this))
    assert vllm_engine(pool_with(), None, None).python == this


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ('["vllm", "penstock_vllm"]', "has no vLLM; pip install vllm there"),
        ('["penstock_vllm"]', "has vLLM but not Penstock's scheduler"),
        ("no JSON", "not a working Python"),
    ],
    ids=["no vLLM", "no plug-in", "no Python"],
)
def test_a_python_without_vllm_is_refused_before_a_process_starts(
    nowhere: Path, tmp_path: Path, printed: str, words: str
) -> None:
    python = python_that_prints(tmp_path / "venv", printed)
    with pytest.raises(Failure, match=words) as caught:
        vllm_engine(pool_with(), python, None)
    assert str(python) in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_missing_vllm_is_invalid_input(nowhere: Path) -> None:
    with pytest.raises(Failure, match="found no vLLM in this Python environment") as caught:
        vllm_engine(pool_with(), None, None)
    assert caught.value.exit_code == 2


def test_a_models_folder_is_passed_as_an_absolute_path(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, model = python_that_prints(tmp_path / "venv", "[]"), tmp_path / "model"
    model.mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Failure, match=r"--model model: not a model") as caught:
        vllm_engine(pool_with(), python, Path("model"))
    assert caught.value.exit_code == 2
    (model / "config.json").write_text("{}")
    assert vllm_engine(pool_with(), python, Path("model")) == VllmEngine(python, str(model))


def test_flags_follow_the_pool_and_its_own_arguments_are_last() -> None:
    words = argv(VllmEngine(Path("/venv/python"), "org/model"), pool_with(args=["--seed=3"]), "::1", "7000")
    assert words[:2] == ("/venv/python", "-X")
    flags = dict(zip(words[5::2], words[6::2], strict=False))
    assert (flags["--model"], flags["--served-model-name"]) == ("org/model", "served")
    assert (flags["--host"], flags["--port"], flags["--max-model-len"]) == ("::1", "7000", "2048")
    assert words[-1] == "--seed=3"


@pytest.mark.parametrize(
    ("output", "flags"),
    [
        ({}, []),
        ({"prefixCaching": True}, ["--enable-prefix-caching"]),
        ({"prefixCaching": False}, ["--no-enable-prefix-caching"]),
    ],
)
def test_the_prefix_cache_follows_the_pool(output: dict[str, bool], flags: list[str]) -> None:
    words = argv(VllmEngine(Path("/venv/python"), "org/model"), pool_with(**output), "::1", "7000")
    assert [word for word in words if word.endswith("prefix-caching")] == flags


def test_the_plug_in_gets_the_pool_by_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    reported = environment(pool_with(), "/run/telemetry")
    assert reported["PENSTOCK_TELEMETRY"] == "/run/telemetry"
    assert reported["PENSTOCK_TIME_MODEL"] == "llama-3-8b-a100"
    assert "PENSTOCK_ACCEPTANCE" not in reported and "VLLM_API_KEY" not in reported
    monkeypatch.setenv(VARIABLE, "hush")
    assert environment(pool_with(), "x")["VLLM_API_KEY"] == "hush"


def test_a_python_that_fails_is_rejected_despite_its_output(tmp_path: Path) -> None:
    python = python_that_prints(tmp_path / "venv", "[]")
    python.write_text(f"{python.read_text()}exit 1\n")
    with pytest.raises(Failure, match="not a working Python"):
        vllm_engine(pool_with(), python, None)


@pytest.mark.parametrize(
    ("source", "model"),
    [({"hub": "org/model"}, "org/model"), ({"image": "registry/m:1"}, "served"), (None, "served")],
)
def test_a_model_is_downloaded_by_its_hub_id_else_by_its_name(
    tmp_path: Path, source: dict[str, str] | None, model: str
) -> None:
    python = python_that_prints(tmp_path / "venv", "[]")
    assert vllm_engine(pool_with(source), python, None).model == model


def test_the_plug_in_gets_the_acceptance_rate() -> None:
    pool = pool_with(speculation={"maxTokens": 3, "acceptance": 0.75})
    assert environment(pool, "x")["PENSTOCK_ACCEPTANCE"] == "0.75"


def test_the_plug_in_requires_tickets_if_routers_reach_its_engine() -> None:
    assert environment(pool_with(answerPath="direct"), "x")["PENSTOCK_TICKETS"] == "required"
    assert "PENSTOCK_TICKETS" not in environment(pool_with(), "x")
