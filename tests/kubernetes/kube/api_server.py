"""A real API server with its controllers, started and stopped by the script that `make e2e` uses too.

Two fake nodes take pods, which become Ready there without running.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "e2e" / "cluster"
DEFINITION = ROOT / "crds" / "servingpools.yaml"
PATIENCE_S = 120


def binaries() -> Path:
    """The folder with kubectl and its like."""
    return Path(_run("build", "--dir"))


@contextmanager
def api_server(folder: Path) -> Iterator[Path]:
    """Yields the administrator's kubeconfig. folder: where its state goes; a socket in it has to fit."""
    kubeconfig = Path(_run("apiserver", "up", str(folder), "--kwok", "2"))
    try:
        yield kubeconfig
    finally:
        _run("apiserver", "down", str(folder))


def _run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [SCRIPTS / script, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, f"{script} {' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()
