"""`penstock up` with its real processes: it serves, heals, and leaves nothing behind."""

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from penstock_cli.failure import Failure
from penstock_cli.local.certificate import certificate_files

ROOT = Path(__file__).resolve().parents[2]
PENSTOCK = str(Path(sys.executable).parent / "penstock")
DEMO = "examples/demo-pool.yaml"
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
PATIENCE_S = 90.0


class Up(NamedTuple):
    """A running `penstock up`, and the URLs that it tells."""

    process: subprocess.Popen[str]
    url: str
    admin_url: str


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, with patience."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, f"never came: {what}"
        time.sleep(0.05)


def get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=10) as reply:
        page: dict[str, Any] = json.load(reply)
        return page


def complete(url: str, trusting: ssl.SSLContext | None = None) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": [5] * 40, "max_tokens": 3, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60, context=trusting) as reply:
        answer: dict[str, Any] = json.load(reply)
        return answer


def in_service(admin_url: str) -> set[str]:
    try:
        page = get(f"{admin_url}/penstock/v1/pool")
        return {one["name"] for one in page["replicas"] if one["state"] == "ready"}
    except (urllib.error.URLError, ConnectionError):
        return set()


def descendants(pid: int) -> dict[int, str]:
    """Command lines of a process's children, by their id."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {
        int(one): Path(f"/proc/{one}/cmdline").read_bytes().replace(b"\0", b" ").decode() for one in listed
    }


def kill_one(parent: int, role: str) -> None:
    """Kill a process of that role, and wait for the one in its place."""
    victim = next(pid for pid, line in descendants(parent).items() if role in line)
    os.kill(victim, signal.SIGKILL)

    def replaced() -> bool:
        now = descendants(parent)
        return victim not in now and len(now) == 5

    until(replaced, f"another {role}")


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with running(tmp_path) as up:
        yield up


@contextmanager
def running(tmp_path: Path, *flags: str) -> Iterator[Up]:
    log = (tmp_path / "up.log").open("w")
    command = [PENSTOCK, "up", "-f", DEMO, "--port", "0", *flags]
    process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, text=True)
    serving = re.compile(r"serving at (https?://\S+)/v1.*\n.*state at (http://\S+)")

    def has_started() -> bool:
        assert process.poll() is None, (tmp_path / "up.log").read_text()
        return serving.search((tmp_path / "up.log").read_text()) is not None

    until(has_started, "the pool")
    found = serving.search((tmp_path / "up.log").read_text())
    assert found is not None
    yield Up(process, found[1], found[2])
    if process.poll() is None:
        process.terminate()
        process.wait(PATIENCE_S)
    log.close()


def test_a_pool_serves_heals_and_stops(up: Up) -> None:
    process, url, admin_url = up
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children that their parent has died")
def test_a_killed_parent_takes_its_children_along(up: Up) -> None:
    process = up.process
    everyone = descendants(process.pid)
    assert len(everyone) >= 5
    process.kill()
    process.wait(PATIENCE_S)
    until(lambda: not any(is_running(pid) for pid in everyone), "the end of its children")


def test_a_process_that_cannot_start_is_told_with_its_reason(tmp_path: Path) -> None:
    """192.0.2.1 is for documentation: no machine has it."""
    command = [PENSTOCK, "up", "-f", DEMO, "--port", "0", "--host", "192.0.2.1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "router ended before the pool was ready: exit code 1: cannot listen on 192.0.2.1:" in last


def make_certificate(cert: Path, key: Path) -> None:
    new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=pool"
    flags = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", *new.split(), *flags], check=True, capture_output=True)


def test_the_api_is_served_over_tls_where_a_certificate_is_given(tmp_path: Path) -> None:
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    make_certificate(cert, key)
    with running(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key)) as up:
        assert up.url.startswith("https://127.0.0.1:")
        until(lambda: in_service(up.admin_url) == {"r0", "r1"}, "both replicas")
        trusting = ssl.create_default_context(cafile=cert)
        assert complete(up.url, trusting)["usage"]["completion_tokens"] == 3


def test_a_certificate_that_cannot_be_used_is_told_before_anything_starts(tmp_path: Path) -> None:
    cert, key, other = tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "other.key"
    make_certificate(cert, other)
    make_certificate(cert, key)
    for wrong, words in (
        ((cert, None), "--tls-cert and --tls-key belong together"),
        ((None, key), "--tls-cert and --tls-key belong together"),
        ((cert, other), r"tls.crt: no certificate with its key in .*other.key"),
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
    """A stand-in for its Python: it has all that is looked for, and ends as vLLM did."""
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
