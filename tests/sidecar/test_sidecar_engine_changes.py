"""A restarted engine with other limits, and missing reports: logged once and planned with."""

import socket
from pathlib import Path
from typing import Any

import pytest
from patience import eventually
from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.timing.time_model import Term, TimeModel
from penstock_proto.telemetry_pb2 import StepReport
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.client import EngineClient, model_mismatch
from penstock_sidecar.engine.metrics import EngineLoad, load_of
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.holding_mirror import EngineCount, HoldingMirror
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.requests.estimates import Estimates
from penstock_sidecar.telemetry import step_reports
from penstock_sidecar.telemetry.socket import TelemetrySocket
from penstock_sidecar.telemetry.step_reports import SILENT_S, StepReports
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tests.sidecar.conftest import Engine

MODEL = TimeModel("test", (Term(0.0001, 0.01),))
ALLOWED = Limits(2048, 64)
BLOCKS: dict[str, Any] = {"kv_blocks_total": 100, "kv_blocks_free": 100, "block_tokens": 16}
NO_REQUESTS = EngineCount(0, 0)

PAGE = b"""\
vllm:num_requests_running{engine="0"} 2.0
vllm:num_requests_waiting{engine="0"} 1.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:cache_config_info{block_size="128",cache_dtype="auto",num_gpu_blocks="64"} 1.0
"""


def mirror() -> ReplicaMirror:
    return ReplicaMirror(KvCache(1000, 1000, 16), ALLOWED, lambda _: 10)


def step_reports_of(seen: ReplicaMirror) -> StepReports:
    return StepReports(seen, Estimates(MODEL), Metrics(CollectorRegistry()), lambda *_: None, "/run/t.sock")


def removed(path: Path) -> None:
    path.unlink()


def is_there(path: Path) -> bool:
    return path.is_socket()


@pytest.mark.parametrize(
    ("reported", "planned"),
    [
        ({}, ALLOWED),  # an engine that does not report it
        ({"most_batch_tokens": 512, "most_running": 16}, Limits(512, 16)),
        ({"most_batch_tokens": 8192, "most_running": 256}, ALLOWED),
    ],
)
def test_a_step_is_planned_within_the_limits_of_pool_and_engine(
    reported: dict[str, Any], planned: Limits
) -> None:
    seen = mirror()
    seen.apply(StepReport(sequence=1, **reported), 0.0)
    assert seen.view(0.0, MODEL).limits == planned


def test_a_restarted_engine_is_planned_with_its_new_limits() -> None:
    seen = mirror()
    reports = step_reports_of(seen)
    reports.receive([StepReport(sequence=1, engine_instance="a", most_running=16, most_batch_tokens=512)])
    with capture_logs() as logs:
        reports.receive(
            [StepReport(sequence=1, engine_instance="b", most_running=32, most_batch_tokens=1024)]
        )
        reports.receive([StepReport(sequence=2, engine_instance="b", **BLOCKS)])
    view = seen.view(0.0, MODEL)
    assert (view.kv, view.limits) == (KvCache(100, 100, 16), Limits(1024, 32))
    (output,) = [log for log in logs if log["event"] == "engine restarted"]
    assert (output["instance"], output["most_running"]) == ("b", 32)


def test_the_cache_size_of_an_engine_without_reports_is_read_again_from_metrics() -> None:
    reported = load_of(PAGE)
    assert reported == EngineLoad(2, 1, 0.25, KvCache(64, 64, 128))
    seen = HoldingMirror(KvCache(1000, 1000, 16), ALLOWED, lambda _: 10)
    seen.engine_load(EngineLoad(0, 0, 0.0, KvCache(64, 64, 128)), NO_REQUESTS, NO_REQUESTS)
    assert seen.view(0.0, MODEL).kv == KvCache(64, 64, 128)
    seen.engine_load(EngineLoad(0, 0, 0.0), NO_REQUESTS, NO_REQUESTS)
    assert seen.view(0.0, MODEL).kv.total_blocks == 64


@pytest.mark.parametrize("blocks", [b'num_gpu_blocks="None"', b'num_gpu_blocks="64",block_size="0"'])
def test_a_cache_size_that_is_not_a_number_is_ignored(blocks: bytes) -> None:
    page = b"\n".join(PAGE.splitlines()[:3]) + b"\nvllm:cache_config_info{" + blocks + b"} 1.0\n"
    assert load_of(page) == EngineLoad(2, 1, 0.25)


@pytest.mark.parametrize(
    ("cards", "wrong"),
    [
        ([{"id": "tiny", "owned_by": "vllm"}], False),
        ([{"id": "base", "owned_by": "vllm"}, {"id": "tiny", "owned_by": "vllm"}], False),  # an adapter
        ([{"id": "other", "owned_by": "vllm"}], True),
        ([{"id": "what-it-could-load", "owned_by": "somebody"}], False),
        ([], False),
    ],
)
def test_vllm_with_another_model_is_not_this_pool_s(cards: list[dict[str, str]], wrong: bool) -> None:
    output = model_mismatch(cards, "tiny")
    assert bool(output) is wrong
    assert not wrong or output.startswith(
        'the engine serves "other", this pool "tiny": start it with --served'
    )


async def test_an_engine_with_another_model_is_not_ready_and_logged_with_the_reason(engine: Engine) -> None:
    engine.card |= {"id": "other", "owned_by": "vllm"}
    async with EngineClient(f"http://127.0.0.1:{engine.port}", Bounds(), "tiny") as client:
        probe = await client.probe()
    assert (probe.ready, probe.refused) == (False, False)
    assert 'the engine serves "other", this pool "tiny"' in probe.cause


def test_an_engine_that_serves_without_reports_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(step_reports, "monotonic", lambda: now_s)
    reports = step_reports_of(mirror())
    with capture_logs() as logs:
        now_s = SILENT_S + 1
        reports.check_silence(engine_ready=False)  # it is not there yet
        now_s += SILENT_S
        reports.check_silence(engine_ready=True)
        assert logs == []
        now_s += 1
        reports.check_silence(engine_ready=True)
        reports.check_silence(engine_ready=True)
        reports.receive([StepReport(sequence=1)])
        reports.check_silence(engine_ready=True)
    silent, again = logs
    assert silent["event"].startswith("engine does not report: planning by forwarded tokens")
    assert (silent["telemetry"], again["event"]) == ("/run/t.sock", "engine reports again")


async def test_a_socket_that_was_removed_is_bound_again(socket_path: Path) -> None:
    got: list[StepReport] = []
    receiver = TelemetrySocket(socket_path, got.extend)
    removed(socket_path)
    with capture_logs() as logs:
        receiver.renew()
        receiver.renew()
    assert [log["event"] for log in logs] == ["telemetry socket was removed and is bound again"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(socket_path))
        sender.send(StepReport(sequence=7).SerializeToString())
        await eventually(lambda: len(got) == 1)
    receiver.close()
    assert not is_there(socket_path)


async def test_a_socket_whose_folder_is_missing_is_logged_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    receiver = TelemetrySocket(folder / "t.sock", lambda _: None)
    (folder / "t.sock").unlink()
    folder.rmdir()
    with capture_logs() as logs:
        receiver.renew()
        receiver.renew()
        folder.mkdir()
        receiver.renew()
    lost, back = logs
    assert lost["cause"] == f"cannot receive telemetry at {folder / 't.sock'}: no such file or directory"
    assert back["event"] == "telemetry socket was removed and is bound again"
    receiver.close()


async def test_a_socket_that_another_process_has_bound_is_left_alone(socket_path: Path) -> None:
    receiver = TelemetrySocket(socket_path, lambda _: None)
    removed(socket_path)
    successor = TelemetrySocket(socket_path, lambda _: None)
    with capture_logs() as logs:
        receiver.renew()
    assert [log["event"] for log in logs] == ["telemetry socket lost"]
    receiver.close()
    assert is_there(socket_path)
    successor.close()
