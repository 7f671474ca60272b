"""Processes of the test cluster: when one of them counts as ended."""

import subprocess
import sys
from pathlib import Path

LIBRARY = Path(__file__).parents[2] / "e2e/cluster/lib/processes.sh"

FIRST_THREAD_ENDS = """
import ctypes, sys, threading

def last():
    sys.stdin.read()

threading.Thread(target=last).start()
print("started", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_is_gone_counts_as_ended_with_its_last_thread() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FIRST_THREAD_ENDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        assert process.stdout.readline() == "started\n"
        until_it_is_a_zombie(process.pid)
        assert start_time(process.pid) != ""
        process.stdin.close()
        process.stdout.read()  # to the end of its last thread; it stays a zombie until waited for
        until_it_has_ended(process.pid)


def until_it_is_a_zombie(pid: int) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z":
        pass


def until_it_has_ended(pid: int) -> None:
    while start_time(pid) != "":
        pass


def start_time(pid: int) -> str:
    """As the cluster's scripts read it; empty once the process has ended."""
    command = ["bash", "-c", 'source "$0"; start_time "$1"', str(LIBRARY), str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
