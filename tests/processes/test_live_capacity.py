"""A capacity search on two processes, stopped by its user."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import until

PENSTOCK = Path(sys.executable).parent / "penstock"
CHILDREN = "/proc/{pid}/task/{pid}/children"


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Heeded, as at a terminal. Where tests run in the background, a shell has had all of them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_a_search_and_its_processes_and_keeps_results(tmp_path: Path) -> None:
    memory = tmp_path / "memory.jsonl"
    requested = ["--scenario", "coder,mixed", "--policy", "vllm", "--jobs", "2", "--resume", str(memory)]
    with subprocess.Popen([PENSTOCK, "capacity", *requested], stderr=subprocess.PIPE, text=True) as search:
        until(lambda: memory.exists() and memory.read_bytes().count(b"\n") >= 2, "two simulations", 120.0)
        children = Path(CHILDREN.format(pid=search.pid)).read_text().split()
        assert len(children) >= 2
        search.send_signal(signal.SIGINT)
        errors = search.communicate(timeout=60)[1]
    assert search.returncode == 1
    assert errors.splitlines()[-1] == "interrupted"
    assert memory.read_bytes().endswith(b"\n")
    for child in children:
        until(lambda: not Path(f"/proc/{child}").exists(), f"process {child} ended")  # noqa: B023 (at once)
