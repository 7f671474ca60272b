"""Runs kubectl as a user does."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patience import PATIENCE_S


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a command."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl of one administrator in one namespace. binary: the program."""

    binary: Path
    kubeconfig: Path
    namespace: str

    def __call__(self, *arguments: object, stdin: str = "") -> Done:
        """Run it and return its result, even if it fails."""
        done = subprocess.run(
            [
                self.binary,
                f"--kubeconfig={self.kubeconfig}",
                f"--cache-dir={self.kubeconfig.parent}/kubectl-cache",  # other servers had this port
                f"--namespace={self.namespace}",
                *map(str, arguments),
            ],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def out(self, *arguments: object, stdin: str = "") -> str:
        """Run it, require success, and return its output."""
        done = self(*arguments, stdin=stdin)
        assert done.code == 0, f"kubectl {' '.join(map(str, arguments))}: {done.err}"
        return done.out

    def get(self, *arguments: object) -> dict[str, Any]:
        """Return an object, or a list of objects, as a document."""
        document: dict[str, Any] = json.loads(self.out("get", "--output=json", *arguments))
        return document
