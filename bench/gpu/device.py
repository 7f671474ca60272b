"""The GPU of this machine, as its driver reports it."""

import subprocess

QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]


def gpus() -> list[str]:
    """Return name, memory and driver of each GPU; empty without a driver or a GPU."""
    try:
        reported = subprocess.run(QUERY, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [" ".join(line.split()) for line in reported.stdout.splitlines() if line.strip()]
