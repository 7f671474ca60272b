"""A real engine process is measured: by `penstock profile`, and by a sidecar whose pool says `auto`."""

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from live.pool_file import write_pool
from live.process import Process
from patience import until
from penstock_core.timing.time_model import BatchWork, from_json
from penstock_proto import replica_pb2 as wire
from penstock_proto.replica_pb2_grpc import ReplicaStub


def test_a_live_engine_is_measured_and_its_model_written(tmp_path: Path) -> None:
    file, out = write_pool(tmp_path / "pool.yaml"), tmp_path / "model.json"
    engine = Process("engine", ["penstock-engine", "-f", str(file), "--port", "0"], tmp_path / "engine.log")
    try:
        measure(f"http://{engine.wait_ready()}", out, tmp_path)
    finally:
        engine.ask_to_stop()
        engine.exit_code()


async def test_a_replica_that_measures_its_engine_is_ready_afterwards(tmp_path: Path) -> None:
    simulated, measured = write_pool(tmp_path / "engine.yaml"), auto_pool(tmp_path, kvCacheTokens=43296)
    engine = Process(
        "engine", ["penstock-engine", "-f", str(simulated), "--port", "0"], tmp_path / "engine.log"
    )
    try:
        sidecar = auto_sidecar(measured, f"http://{engine.wait_ready()}", tmp_path)
        async with grpc.aio.insecure_channel(sidecar.wait_ready()) as channel:
            reported = await ReplicaStub(channel).Describe(wire.DescribeRequest())
        assert reported.kv_tokens_total == 43296
        assert from_json(json.loads(reported.time_model_json)).prefill_seconds(512) > 0
        assert "event=measured" in sidecar.printed_text
        sidecar.ask_to_stop()
        assert sidecar.exit_code() == 0
    finally:
        engine.ask_to_stop()
        engine.exit_code()


def test_a_replica_waits_for_its_engine_and_stops_on_a_signal(tmp_path: Path) -> None:
    sidecar = auto_sidecar(auto_pool(tmp_path), "http://127.0.0.1:9", tmp_path)
    until(lambda: "waiting for the engine" in sidecar.printed_text, "waiting")
    sidecar.ask_to_stop()
    assert sidecar.exit_code() == 0


def test_a_pool_needs_a_cache_size_that_its_engine_does_not_report(tmp_path: Path) -> None:
    simulated = write_pool(tmp_path / "engine.yaml")
    engine = Process(
        "engine", ["penstock-engine", "-f", str(simulated), "--port", "0"], tmp_path / "engine.log"
    )
    try:
        sidecar = auto_sidecar(auto_pool(tmp_path), f"http://{engine.wait_ready()}", tmp_path)
        assert sidecar.exit_code() == 1
    finally:
        engine.ask_to_stop()
        engine.exit_code()
    assert "spec.engine.kvCacheTokens: missing, and this engine does not report it" in sidecar.printed_text


def auto_pool(tmp_path: Path, **engine: Any) -> Path:
    reported = {"type": "openai", "timeModel": "auto", "profileTimeout": "2s", **engine}
    return write_pool(tmp_path / "auto.yaml", engine=reported)


def auto_sidecar(pool: Path, engine: str, tmp_path: Path) -> Process:
    flags = ["-f", str(pool), "--name", "r0", "--listen", "127.0.0.1:0", "--engine", engine]
    return Process("sidecar", ["penstock-sidecar", *flags], tmp_path / "sidecar.log")


def measure(url: str, out: Path, tmp_path: Path) -> None:
    flags = ["--engine", url, "--out", str(out), "--seconds", "3", "--longest-prompt", "1024"]
    profile = Process(
        "profile", ["penstock", "profile", *flags, "--most-requests", "4"], tmp_path / "profile.log"
    )
    assert profile.exit_code() == 0, profile.printed_text
    assert "Accuracy on held-out points: " in profile.printed_text
    page = json.loads(out.read_bytes())
    model = from_json(page["time_model"])
    assert page["format"] == "penstock-time-model/1"
    assert model.prefill_seconds(1024) > model.prefill_seconds(64) > 0
    assert model.seconds(BatchWork(4, 4000)) >= model.seconds(BatchWork(1, 64)) > 0


@pytest.mark.parametrize(
    ("flags", "output"),
    [
        (
            ["--engine", "http://127.0.0.1:9"],
            "--engine: http://127.0.0.1:9: no engine answers",
        ),
        (["--engine", "nonsense"], '--engine: "nonsense" is not a URL'),
    ],
    ids=["nobody there", "no url"],
)
def test_a_server_that_is_not_an_engine_is_one_clear_line(
    flags: list[str], output: str, tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "model.json")]
    profile = Process("profile", ["penstock", "profile", *flags, *out], tmp_path / "profile.log")
    assert profile.exit_code() == 1
    (line,) = profile.printed_text.strip().splitlines()
    assert line.startswith(output)


def test_a_missing_folder_is_reported_before_the_measurement(tmp_path: Path) -> None:
    out = str(tmp_path / "nowhere" / "model.json")
    flags = ["--engine", "http://127.0.0.1:9", "--out", out]
    profile = Process("profile", ["penstock", "profile", *flags], tmp_path / "profile.log")
    assert profile.exit_code() == 2
    assert f"--out {out}: folder {tmp_path / 'nowhere'} does not exist" in profile.printed_text
