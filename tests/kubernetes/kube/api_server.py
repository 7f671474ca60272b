"""A real API server with its controllers, started and stopped by the script that `make e2e` uses too.

Two fake nodes take pods, which become Ready there without running.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "e2e" / "cluster"
DEFINITION = ROOT / "crds" / "servingpools.yaml"


def binaries() -> Path:
    """Return the folder with kubectl and the other programs."""
    return Path(_run("build", "--dir"))


def upstream_definitions() -> list[Path]:
    """Return files with the CRDs of other projects that pools use and clusters may lack."""
    return [Path(line) for line in _run("definitions").splitlines()]


@contextmanager
def api_server(folder: Path, *flags: str) -> Iterator[Path]:
    """Run an API server. Yields the administrator's kubeconfig.

    folder: the server's state; its path must be short enough for a Unix socket. flags: flags of the script.
    """
    kubeconfig = Path(_run("apiserver", "up", str(folder), *flags))
    try:
        yield kubeconfig
    finally:
        _run("apiserver", "down", str(folder))


def backup(folder: Path, to: Path) -> None:
    """Copy the API server's etcd."""
    _run("apiserver", "backup", str(folder), str(to))


def restore(folder: Path, copy: Path) -> None:
    """Restore etcd from a copy. Resource versions decrease."""
    _run("apiserver", "restore", str(folder), str(copy))


def _run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [SCRIPTS / script, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, f"{script} {' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()
