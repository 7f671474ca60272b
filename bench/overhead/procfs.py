"""CPU time and memory of a process, from the kernel."""

import time
from pathlib import Path


def cpu_s(pid: int) -> float:
    """Return user and system seconds of all threads, from the clock of clock_getcpuclockid(3)."""
    return time.clock_gettime((~pid << 3) | 2)


def rss_mib(pid: int) -> float:
    """Return resident memory, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"no VmRSS for process {pid}")
