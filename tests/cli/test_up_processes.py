"""`penstock up` with its real processes: it serves, recovers, and leaves no process behind."""

import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock_cli.failure import Failure
from penstock_cli.local.certificate import certificate_files
from running_up import (
    DEMO,
    PATIENCE_S,
    PENSTOCK,
    ROOT,
    Up,
    complete,
    descendants,
    in_service,
    is_running,
    kill_one,
    make_certificate,
    running,
    until,
)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with running(tmp_path) as up:
        yield up


def test_a_pool_serves_recovers_and_stops(up: Up) -> None:
    process, url, admin_url, _ = up
    children = descendants(process.pid)
    roles = sorted(re.findall(r"penstock-(engine|sidecar|router)", " ".join(children.values())))
    assert roles == ["engine", "engine", "router", "sidecar", "sidecar"]
    until(lambda: in_service(admin_url) == {"r0", "r1"}, "both replicas")
    assert complete(url)["usage"] == {"prompt_tokens": 40, "completion_tokens": 3, "total_tokens": 43}

    for role in ("penstock-sidecar", "penstock-engine", "penstock-router"):
        kill_one(process.pid, role)
        until(lambda: in_service(admin_url) == {"r0", "r1"}, "both replicas again")
        assert complete(url)["usage"]["completion_tokens"] == 3

    everyone = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    assert [line for pid, line in everyone.items() if is_running(pid)] == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals children when their parent dies")
def test_a_killed_parents_children_end(up: Up) -> None:
    process = up.process
    everyone = descendants(process.pid)
    assert len(everyone) >= 5
    process.kill()
    process.wait(PATIENCE_S)
    until(lambda: not any(is_running(pid) for pid in everyone), "the end of its children")


def test_a_process_that_cannot_start_is_reported_with_its_reason(tmp_path: Path) -> None:
    """192.0.2.1 is for documentation: no machine has it."""
    command = [PENSTOCK, "up", "-f", DEMO, "--port", "0", "--host", "192.0.2.1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "router ended before the pool was ready: exit code 1: cannot listen on 192.0.2.1:" in last


def test_with_a_certificate_the_api_is_served_over_tls(tmp_path: Path) -> None:
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    make_certificate(cert, key)
    with running(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key)) as up:
        assert up.url.startswith("https://127.0.0.1:")
        until(lambda: in_service(up.admin_url) == {"r0", "r1"}, "both replicas")
        trusting = ssl.create_default_context(cafile=cert)
        assert complete(up.url, trusting)["usage"]["completion_tokens"] == 3


def test_an_unusable_certificate_is_reported_before_a_process_starts(tmp_path: Path) -> None:
    cert, key, other = tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "other.key"
    make_certificate(cert, other)
    make_certificate(cert, key)
    for wrong, words in (
        ((cert, None), "--tls-cert and --tls-key belong together"),
        ((None, key), "--tls-cert and --tls-key belong together"),
        ((cert, other), r"tls.crt: not a certificate with its key in .*other.key"),
        ((cert, tmp_path / "none.key"), r"none.key: No such file"),
    ):
        with pytest.raises(Failure, match=words) as failure:
            certificate_files(*wrong)
        assert failure.value.exit_code == 2
    assert certificate_files(None, None) is None


VLLM_WITHOUT_ROOM = """\
(EngineCore pid=7) ERROR 11-21 23:07:01 [core.py:1510] EngineCore failed to start.
(EngineCore pid=7) ERROR 11-21 23:07:01 [core.py:1510] ValueError: To serve at least one request, 2 GiB \
KV cache is needed, which is larger than the available KV cache memory (1 GiB).
Traceback (most recent call last):
  File "vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
"""
"""How the log of vLLM 0.32 ends that has not enough blocks, most frames of its tracebacks left out."""


def test_vllm_that_cannot_start_is_quoted(tmp_path: Path) -> None:
    """A substitute for its Python: it has all required modules, and ends as vLLM did."""
    (tmp_path / "log").write_text(VLLM_WITHOUT_ROOM)
    (tmp_path / "config.json").write_text("{}")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo "[]" && exit\ncat {tmp_path}/log >&2\nexit 1\n')
    python.chmod(0o755)
    command = [PENSTOCK, "up", "-f", "examples/tiny-vllm-pool.yaml", "--engine", "vllm", "--port", "0"]
    command += ["--replicas", "1", "--model", str(tmp_path), "--vllm-python", str(python)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "engine-r0 ended before the pool was ready: exit code 1: ValueError: To serve at least one request, "
        "2 GiB KV cache is needed, which is larger than the available KV cache memory (1 GiB)."
    )
