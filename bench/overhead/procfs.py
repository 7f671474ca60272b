"""What the kernel says a process has used."""

import time
from pathlib import Path


def cpu_s(pid: int) -> float:
    """User and system seconds of all threads so far, by the clock of clock_getcpuclockid(3)."""
    return time.clock_gettime((~pid << 3) | 2)


def rss_mib(pid: int) -> float:
    """Resident memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"no VmRSS for process {pid}")
