"""A running `penstock up`, from the outside."""

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import patience

ROOT = Path(__file__).resolve().parents[2]
PENSTOCK = str(Path(sys.executable).parent / "penstock")
DEMO = "examples/demo-pool.yaml"
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
PATIENCE_S = 90.0


class Up(NamedTuple):
    """A running `penstock up`, the URLs that it prints, and its log."""

    process: subprocess.Popen[str]
    url: str
    admin_url: str
    log: Path


until = partial(patience.until, interval_s=0.05)
"""Polls with a pause, because conditions send requests."""


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
    listed = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return {one: line for one in listed if (line := _command_line(one)) is not None}


def _command_line(pid: int) -> str | None:
    """The command line of a process; None if it has ended since it was listed."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return None


def kill_one(parent: int, role: str) -> None:
    """Kill a process of that role, and wait for the one in its place."""
    before = descendants(parent)
    victim, count = next(pid for pid, line in before.items() if role in line), len(before)
    os.kill(victim, signal.SIGKILL)

    def replaced() -> bool:
        now = descendants(parent)
        return victim not in now and len(now) == count

    until(replaced, f"another {role}")


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@contextmanager
def running(tmp_path: Path, *flags: str, file: str | Path = DEMO) -> Iterator[Up]:
    log = (tmp_path / "up.log").open("w")
    command = [PENSTOCK, "up", "-f", str(file), "--port", "0", *flags]
    process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, text=True)
    serving = re.compile(r"serving at (https?://\S+)/v1.*\n.*state at (http://\S+)")

    def has_started() -> bool:
        assert process.poll() is None, (tmp_path / "up.log").read_text()
        return serving.search((tmp_path / "up.log").read_text()) is not None

    until(has_started, "the pool")
    found = serving.search((tmp_path / "up.log").read_text())
    assert found is not None
    yield Up(process, found[1], found[2], tmp_path / "up.log")
    if process.poll() is None:
        process.terminate()
        process.wait(PATIENCE_S)
    log.close()


def make_certificate(cert: Path, key: Path) -> None:
    new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=pool"
    flags = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", *new.split(), *flags], check=True, capture_output=True)
