"""The message that a failing engine leaves for the process that started it."""

import logging
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from penstock_vllm.termination_message import VARIABLE, TerminationMessage, install

CORE, WORKER = "vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor"


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "termination-log"
    path.touch()
    monkeypatch.setenv(VARIABLE, str(path))
    install()
    yield path
    vllm = logging.getLogger("vllm")
    for handler in [handler for handler in vllm.handlers if isinstance(handler, TerminationMessage)]:
        vllm.removeHandler(handler)


def ends(logger: str, error: Exception) -> None:
    try:
        raise error
    except type(error):
        logging.getLogger(logger).exception("EngineCore failed to start.")


def test_a_failed_engine_leaves_its_reason_in_one_line(words: Path) -> None:
    ends(CORE, ValueError("No available memory for the cache blocks.\nTry increasing it."))
    assert words.read_text() == "ValueError: No available memory for the cache blocks. Try increasing it."


def test_the_message_of_the_failed_worker_is_preferred_to_that_of_the_waiting_engine(words: Path) -> None:
    ends(WORKER, RuntimeError("no such device"))
    ends(CORE, Exception("WorkerProc initialization failed. See stack trace for root cause."))
    assert words.read_text() == "RuntimeError: no such device"


def test_errors_that_do_not_end_the_engine_leave_no_termination_message(words: Path) -> None:
    ends("vllm.entrypoints.openai", ValueError("a bad request"))
    logging.getLogger(CORE).error("without an exception")
    assert words.read_text() == ""


def test_without_the_setting_no_message_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    before = list(logging.getLogger("vllm").handlers)
    install()
    assert logging.getLogger("vllm").handlers == before


def test_an_unwritable_message_file_does_not_stop_the_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = TerminationMessage(tmp_path / "no folder" / "log")
    try:
        raise ValueError("x")
    except ValueError as error:
        reported = (type(error), error, error.__traceback__)
        handler.emit(logging.LogRecord(CORE, logging.ERROR, "", 0, "failed", None, reported))
    assert "FileNotFoundError" in capsys.readouterr().err


def test_vllm_finds_the_plug_in_from_its_sources_alone() -> None:
    """As in a pod: the plug-in's folder on PYTHONPATH, nothing installed."""
    sources = Path(__file__).resolve().parents[2] / "vllm-plugin" / "src"
    reported = (sources / "penstock_vllm_plugin.dist-info" / "entry_points.txt").read_text()
    (named,) = {
        (point.name, point.value) for point in entry_points(group="vllm.general_plugins", name="penstock")
    }
    assert reported.split() == ["[vllm.general_plugins]", named[0], "=", named[1]]
