"""`penstock profile` on a real engine process: a model that predicts it, in a file that can be read."""

import json
from pathlib import Path

import pytest
from live.pool_file import write_pool
from live.process import Process
from penstock_core.time_model import BatchWork, from_json


def test_a_live_engine_is_measured_and_its_model_written(tmp_path: Path) -> None:
    file, out = write_pool(tmp_path / "pool.yaml"), tmp_path / "model.json"
    engine = Process("engine", ["penstock-engine", "-f", str(file), "--port", "0"], tmp_path / "engine.log")
    try:
        measure(f"http://{engine.wait_ready()}", out, tmp_path)
    finally:
        engine.ask_to_stop()
        engine.exit_code()


def measure(url: str, out: Path, tmp_path: Path) -> None:
    flags = ["--engine", url, "--out", str(out), "--seconds", "3", "--longest-prompt", "1024"]
    profile = Process(
        "profile", ["penstock", "profile", *flags, "--most-requests", "4"], tmp_path / "profile.log"
    )
    assert profile.exit_code() == 0, profile.said
    assert "On points that a fit to the others had not seen" in profile.said
    page = json.loads(out.read_bytes())
    model = from_json(page["time_model"])
    assert page["format"] == "penstock-time-model/1"
    assert model.prefill_seconds(1024) > model.prefill_seconds(64) > 0
    assert model.seconds(BatchWork(4, 4000)) >= model.seconds(BatchWork(1, 64)) > 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--engine", "http://127.0.0.1:9"],
            "--engine: http://127.0.0.1:9: no engine answers",
        ),
        (["--engine", "nonsense"], '--engine: "nonsense" is no URL'),
    ],
    ids=["nobody there", "no url"],
)
def test_an_engine_that_is_none_is_one_clear_line(flags: list[str], said: str, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "model.json")]
    profile = Process("profile", ["penstock", "profile", *flags, *out], tmp_path / "profile.log")
    assert profile.exit_code() == 1
    (line,) = profile.said.strip().splitlines()
    assert line.startswith(said)


def test_a_folder_that_is_not_there_is_noticed_before_measuring(tmp_path: Path) -> None:
    out = str(tmp_path / "nowhere" / "model.json")
    flags = ["--engine", "http://127.0.0.1:9", "--out", out]
    profile = Process("profile", ["penstock", "profile", *flags], tmp_path / "profile.log")
    assert profile.exit_code() == 2
    assert f"--out {out}: there is no folder" in profile.said
