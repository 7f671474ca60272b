"""What an image here takes from a Dockerfile: its last stage's words, and the command of its build stage.

Not a builder: bases come from elsewhere. But environment, user, entry point, labels and the one command that
installs are read from the file itself, so that what runs here is what any builder makes of it.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

INSTALL = "/src/images/install"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a Dockerfile says.

    install: the command that fills /opt/penstock, in the environment `build_env`.
    """

    install: Sequence[str]
    build_env: Mapping[str, str]
    env: Mapping[str, str]
    labels: Mapping[str, str]
    user: str
    entrypoint: Sequence[str]


def read_recipe(path: Path) -> Recipe:
    """The recipe in a Dockerfile. Raises ValueError where it has no build stage or no such command."""
    *_, build, last = list(_stages(path.read_text()))
    install = [words for words in map(shlex.split, build.get("RUN", [])) if words[0] == INSTALL]
    if len(install) != 1:
        raise ValueError(f"{path}: the build stage must run {INSTALL} once")
    arguments, labels = _pairs(last.get("ARG", [])), _pairs(last.get("LABEL", []))
    return Recipe(
        install=install[0],
        build_env=_pairs(build.get("ENV", [])),
        env=_pairs(last.get("ENV", [])),
        labels={name: Template(value).substitute(arguments) for name, value in labels.items()},
        user=last["USER"][-1],
        entrypoint=json.loads(last["ENTRYPOINT"][-1]),
    )


def _stages(text: str) -> Iterator[dict[str, list[str]]]:
    """Each stage's instructions: what follows each word, in the file's order."""
    stage: dict[str, list[str]] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM" and "FROM" in stage:
            yield stage
            stage = {}
        if word and not word.startswith("#"):
            stage.setdefault(word, []).append(rest.strip())
    yield stage


def _pairs(lines: Sequence[str]) -> dict[str, str]:
    pairs = (word.partition("=") for line in lines for word in shlex.split(line))
    return {key: value for key, _, value in pairs}
