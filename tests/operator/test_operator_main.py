"""The flags of `penstock-operator`: settings that they override, and refused values."""

import asyncio
import logging
import runpy
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import kopf
import pytest
from penstock_operator import main as operator_main
from penstock_operator.manifests.manifest import Ref
from penstock_operator.options import OperatorOptions, lease_in, read_options
from penstock_operator.settings import OperatorSettings, read_settings
from test_operator_settings import LEAST

ENVIRONMENT = {**LEAST, "PENSTOCK_NAMESPACES": "one", "PENSTOCK_LEASE_NAMESPACE": "system", "POD_NAME": "me"}


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Those of kopf are as they were afterwards."""
    loggers = [logging.getLogger(name) for name in ("kopf", "kopf.activities")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for name in ("PENSTOCK_PORT", "PENSTOCK_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(operator_main, "configure_logs", lambda *_: None)


def started(monkeypatch: pytest.MonkeyPatch, *flags: str) -> tuple[OperatorSettings, OperatorOptions]:
    """Return the settings that the operator would run with."""
    seen = list[tuple[OperatorSettings, OperatorOptions]]()

    def run(settings: OperatorSettings, options: OperatorOptions) -> int:
        seen.append((settings, options))
        return 7

    monkeypatch.setattr(operator_main, "_run", run)
    with warnings.catch_warnings():
        assert operator_main.main(flags) == 7
    return seen[0]


def test_without_flags_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert started(monkeypatch) == (read_settings(LEAST), read_options(ENVIRONMENT))


@pytest.mark.parametrize(
    ("flags", "changed"),
    [
        (("--namespaces", " a,b , ,"), {"namespaces": ("a", "b")}),
        (("--namespaces", ""), {"namespaces": ()}),
        (("--lease-namespace", "other"), {"lease": lease_in("other")}),
        (("--lease-namespace", ""), {"lease": None}),
        (("--host", "::1"), {"host": "::1"}),
        (("--port", "0"), {"port": 0}),
        (("--workers", "1"), {"workers": 1}),
        (("--workers", "64"), {"workers": 64}),
        (("--resync-s", "0.5"), {"resync_s": 0.5}),
    ],
)
def test_a_flag_overrides_only_its_own_setting(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, str], changed: dict[str, object]
) -> None:
    _, options = started(monkeypatch, *flags)
    assert options == replace(read_options(ENVIRONMENT), **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--port", "65536", "port"),
        ("--workers", "0", "'0' is not a number of workers: 1 to 64"),
        ("--workers", "65", "'65' is not a number of workers: 1 to 64"),
        ("--workers", "two", "'two' is not a number of workers: 1 to 64"),
        ("--resync-s", "0", "'0' is not a positive number"),
        ("--resync-s", "inf", "'inf' is not a positive number"),
        ("--resync-s", "soon", "'soon' is not a positive number"),
        ("--log-level", "loud", "invalid choice: 'loud'"),
    ],
)
def test_an_invalid_flag_is_one_line(
    capsys: pytest.CaptureFixture[str], flag: str, value: str, message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        operator_main.main([flag, value])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_missing_image_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PENSTOCK_VLLM_IMAGE")
    assert operator_main.main([]) == 2
    assert "PENSTOCK_VLLM_IMAGE" in capsys.readouterr().err


def test_the_log_follows_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    configured = list[tuple[object, ...]]()
    monkeypatch.setattr(operator_main, "configure_logs", lambda *given: configured.append(given))
    started(monkeypatch)
    started(monkeypatch, "--log-level", "debug", "--log-json")
    assert configured == [("penstock-operator", "info", False), ("penstock-operator", "debug", True)]


def test_kopf_does_not_log_events_that_the_operator_logs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> int:
        warnings.warn("coroutine 'f' was never awaited", RuntimeWarning, stacklevel=1)
        with pytest.raises(RuntimeWarning, match="another"):
            warnings.warn("another", RuntimeWarning, stacklevel=1)
        return 7

    monkeypatch.setattr(operator_main, "_run", run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert operator_main.main([]) == 7
    levels = [logging.getLogger(name).level for name in ("kopf", "kopf.activities")]
    assert levels == [logging.WARNING, logging.CRITICAL]


def ran(monkeypatch: pytest.MonkeyPatch, options: OperatorOptions, end: object) -> tuple[int, dict[str, Any]]:
    """Return the exit code and kopf's arguments when kopf ends with `end`, an exception or a start error."""
    given: dict[str, Any] = {}

    async def operator(**arguments: Any) -> None:
        given.update(arguments)
        if isinstance(end, BaseException):
            raise end
        if end is not None:
            arguments["memo"].start_error = end
            raise RuntimeError("startup failed")

    monkeypatch.setattr(kopf, "operator", operator)
    return operator_main._run(read_settings(LEAST), options), given


@pytest.mark.parametrize("namespaces", [(), ("a", "b")])
def test_kopf_watches_the_named_namespaces_or_all(
    monkeypatch: pytest.MonkeyPatch, namespaces: tuple[str, ...]
) -> None:
    options = OperatorOptions(namespaces=namespaces)
    code, given = ran(monkeypatch, options, None)
    assert (code, given["clusterwide"], given["namespaces"]) == (0, not namespaces, namespaces)
    assert (given["memo"].options, given["memo"].settings) == (options, read_settings(LEAST))


def test_an_operator_that_cannot_start_exits_with_1_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(monkeypatch, OperatorOptions(), "no API server is known")[0] == 1
    assert capsys.readouterr().err == "no API server is known\n"


def test_a_signal_exits_with_0_and_a_defect_prints_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(monkeypatch, OperatorOptions(), asyncio.CancelledError())[0] == 0
    with pytest.raises(ZeroDivisionError):
        ran(monkeypatch, OperatorOptions(), ZeroDivisionError())


def test_help_has_the_settings_of_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        operator_main.main(["--help"])
    assert ended.value.code == 0
    assert operator_main.EPILOG.strip() in capsys.readouterr().out


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_an_invalid_port_in_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], port: str
) -> None:
    monkeypatch.setenv("PENSTOCK_PORT", port)
    assert operator_main.main([]) == 2
    assert capsys.readouterr().err == f'PENSTOCK_PORT: "{port}" is not a port: 0 to 65535\n'


def test_options_of_the_environment_are_read() -> None:
    found = read_options({"PENSTOCK_PORT": "65535", "PENSTOCK_HOST": "::1", "PENSTOCK_NAMESPACES": "a, b,"})
    assert (found.port, found.host, found.namespaces, found.lease) == (65535, "::1", ("a", "b"), None)
    default = read_options({})
    assert (default.host, default.port, default.workers, default.resync_s) == ("0.0.0.0", 8080, 8, 120.0)
    assert (default.namespaces, default.lease) == ((), None)
    assert lease_in("system") == Ref("coordination.k8s.io/v1", "Lease", "system", "penstock-operator")


def test_the_operator_is_an_installed_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_VLLM_IMAGE", "")
    monkeypatch.setattr(sys, "argv", ["penstock-operator"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(operator_main.__file__, run_name="__main__")
    assert ended.value.code == 2
    assert "PENSTOCK_VLLM_IMAGE" in capsys.readouterr().err
