"""The GPU of this machine, as its driver reports it."""

import subprocess

QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]


def gpus() -> list[str]:
    """Name, memory and driver of each; none where there is no driver or it finds none."""
    try:
        reported = subprocess.run(QUERY, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [" ".join(line.split()) for line in reported.stdout.splitlines() if line.strip()]
