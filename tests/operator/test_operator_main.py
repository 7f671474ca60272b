"""The flags of `penstock-operator`: what they override of the environment, and what they refuse."""

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from penstock_operator import main as operator_main
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
    """What the operator would run with."""
    seen = list[tuple[OperatorSettings, OperatorOptions]]()

    def run(settings: OperatorSettings, options: OperatorOptions) -> int:
        seen.append((settings, options))
        return 7

    monkeypatch.setattr(operator_main, "_run", run)
    assert operator_main.main(flags) == 7
    return seen[0]


def test_without_flags_the_environment_holds(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_flag_overrides_the_environment_and_nothing_else(
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


def test_a_missing_image_ends_it_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PENSTOCK_VLLM_IMAGE")
    assert operator_main.main([]) == 2
    assert "PENSTOCK_VLLM_IMAGE" in capsys.readouterr().err


def test_its_log_is_as_the_flags_say(monkeypatch: pytest.MonkeyPatch) -> None:
    configured = list[tuple[object, ...]]()
    monkeypatch.setattr(operator_main, "configure_logs", lambda *given: configured.append(given))
    started(monkeypatch)
    started(monkeypatch, "--log-level", "debug", "--log-json")
    assert configured == [("penstock-operator", "info", False), ("penstock-operator", "debug", True)]
