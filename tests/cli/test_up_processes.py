"""`penstock up` with its real processes: it serves, heals, and leaves nothing behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PENSTOCK = str(Path(sys.executable).parent / "penstock")
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


def complete(url: str) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": [5] * 40, "max_tokens": 3, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
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
    log = (tmp_path / "up.log").open("w")
    command = [
        str(Path(sys.executable).parent / "penstock"),
        "up",
        "-f",
        "examples/demo-pool.yaml",
        "--port",
        "0",
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, text=True)
    serving = re.compile(r"serving at (http://\S+)/v1.*\n.*state at (http://\S+)")

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
    """An offload to another pool is a valid spec that one machine's router refuses."""
    pool = (ROOT / "examples" / "demo-pool.yaml").read_text()
    path = tmp_path / "pool.yaml"
    path.write_text(pool.replace("backup: best-effort", "backup: offload, pool: other"))
    command = [PENSTOCK, "up", "-f", str(path), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "router ended before the pool was ready: exit code 2: " in last
    assert 'spec.routing.backup: "offload"' in last


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
