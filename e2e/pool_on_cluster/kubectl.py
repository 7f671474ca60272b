"""kubectl and helm, as a person would use them, with what they print as values."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Object = Mapping[str, Any]
LONGEST_S = 300


class CommandFailed(AssertionError):
    """A command did not succeed. Says which, and what it said."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The two programs, against one cluster."""

    binaries: Path
    kubeconfig: Path

    def kubectl(self, *arguments: object, stdin: str = "") -> str:
        """What kubectl prints. Raises CommandFailed."""
        return self._run("kubectl", *arguments, stdin=stdin)

    def helm(self, *arguments: object) -> str:
        """What helm prints. Raises CommandFailed."""
        return self._run("helm", *arguments)

    def refused(self, *arguments: object, stdin: str = "") -> str:
        """What kubectl says where it has to fail."""
        try:
            output = self.kubectl(*arguments, stdin=stdin)
        except CommandFailed as failed:
            return str(failed)
        raise AssertionError(f"kubectl {' '.join(map(str, arguments))} was not refused: {output}")

    def get(self, *arguments: object) -> Any:
        """An object or a list of them. Raises CommandFailed."""
        return json.loads(self.kubectl("get", "--output=json", *arguments))

    def items(self, *arguments: object) -> list[Any]:
        """The objects of a list."""
        items: list[Any] = self.get(*arguments)["items"]
        return items

    def exists(self, *arguments: object) -> bool:
        """Whether there is anything of the kind and name, or of the kind at all."""
        return bool(self.kubectl("get", "--ignore-not-found", "--output=name", *arguments).strip())

    def apply(self, document: Mapping[str, Any], namespace: str) -> None:
        """Apply one document."""
        self.kubectl("apply", "--namespace", namespace, "--filename=-", stdin=json.dumps(document))

    def patch(self, kind: str, name: str, namespace: str, document: Mapping[str, Any]) -> None:
        """Merge into one object."""
        self.kubectl(
            "patch", kind, name, "--namespace", namespace, "--type=merge", "--patch", json.dumps(document)
        )

    def _run(self, program: str, *arguments: object, stdin: str = "") -> str:
        command = [str(self.binaries / program), "--kubeconfig", str(self.kubeconfig), *map(str, arguments)]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
        if done.returncode:
            raise CommandFailed(f"{program} {' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return done.stdout
