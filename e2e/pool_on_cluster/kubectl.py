"""Runs kubectl and helm, and parses their output."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Object = Mapping[str, Any]
TIMEOUT_S = 300


class CommandFailed(AssertionError):
    """A command failed. The message has the command and its standard error."""


@dataclass(frozen=True, slots=True)
class Tools:
    """kubectl and helm for one cluster."""

    binaries: Path
    kubeconfig: Path

    def kubectl(self, *arguments: object, stdin: str = "") -> str:
        """Return the output of kubectl. Raises CommandFailed."""
        return self._run("kubectl", *arguments, stdin=stdin)

    def helm(self, *arguments: object) -> str:
        """Return the output of helm. Raises CommandFailed."""
        return self._run("helm", *arguments)

    def expect_error(self, *arguments: object, stdin: str = "") -> str:
        """Return the error of a kubectl command that must fail. Raises AssertionError if it succeeds."""
        try:
            output = self.kubectl(*arguments, stdin=stdin)
        except CommandFailed as failed:
            return str(failed)
        raise AssertionError(f"kubectl {' '.join(map(str, arguments))} succeeded: {output}")

    def get(self, *arguments: object) -> Any:
        """Return an object or a list. Raises CommandFailed."""
        return json.loads(self.kubectl("get", "--output=json", *arguments))

    def items(self, *arguments: object) -> list[Any]:
        """Return the objects of a list. Raises CommandFailed."""
        items: list[Any] = self.get(*arguments)["items"]
        return items

    def exists(self, *arguments: object) -> bool:
        """Return whether an object that matches the arguments exists."""
        return bool(self.kubectl("get", "--ignore-not-found", "--output=name", *arguments).strip())

    def apply(self, document: Mapping[str, Any], namespace: str) -> None:
        """Apply one document."""
        self.kubectl("apply", "--namespace", namespace, "--filename=-", stdin=json.dumps(document))

    def patch(self, kind: str, name: str, namespace: str, document: Mapping[str, Any]) -> None:
        """Merge a document into one object."""
        self.kubectl(
            "patch", kind, name, "--namespace", namespace, "--type=merge", "--patch", json.dumps(document)
        )

    def _run(self, program: str, *arguments: object, stdin: str = "") -> str:
        command = [str(self.binaries / program), "--kubeconfig", str(self.kubeconfig), *map(str, arguments)]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if done.returncode:
            raise CommandFailed(f"{program} {' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return done.stdout
