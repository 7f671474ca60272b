"""Reads from a Dockerfile what an image needs here: its last stage, and the command of its build stage.

Base images exist already, so no builder is needed. The base, environment, user, entry point, labels, and the
one command that installs or the folders that are copied, come from the file itself, so that what runs here is
what any builder makes of it.
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

    base: the image that it runs on, without its tag.
    install: the command that fills /opt/penstock, in the environment `build_env`; or
    copies: folders of the checkout and, last, where what is in them goes.
    """

    base: str
    install: Sequence[str]
    copies: Sequence[Sequence[str]]
    build_env: Mapping[str, str]
    env: Mapping[str, str]
    labels: Mapping[str, str]
    user: str
    entrypoint: Sequence[str]


def read_recipe(path: Path) -> Recipe:
    """The recipe in a Dockerfile. Raises ValueError where it neither installs, once, nor copies."""
    bases, *stages = _stages(path.read_text())
    *before, last = stages
    copies = [words for words in map(shlex.split, last.get("COPY", [])) if not words[0].startswith("--")]
    build = before[-1] if before else {}
    install = [words for words in map(shlex.split, build.get("RUN", [])) if words[0] == INSTALL]
    if len(install) != 1 - bool(copies):
        raise ValueError(f"{path}: the build stage must run {INSTALL} once, where nothing is copied")
    arguments, labels = _pairs(last.get("ARG", [])), _pairs(last.get("LABEL", []))
    return Recipe(
        base=_pairs(bases.get("ARG", [])).get("RUNTIME", "").partition(":")[0],
        install=install[0] if install else (),
        copies=copies,
        build_env=_pairs(build.get("ENV", [])),
        env=_pairs(last.get("ENV", [])),
        labels={name: Template(value).substitute(arguments) for name, value in labels.items()},
        user=last["USER"][-1],
        entrypoint=json.loads(last["ENTRYPOINT"][-1]),
    )


def _stages(text: str) -> Iterator[dict[str, list[str]]]:
    """Return what comes before the first stage, then each stage: its instructions in the file's order."""
    stage: dict[str, list[str]] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            yield stage
            stage = {}
        if word and not word.startswith("#"):
            stage.setdefault(word, []).append(rest.strip())
    yield stage


def _pairs(lines: Sequence[str]) -> dict[str, str]:
    pairs = (word.partition("=") for line in lines for word in shlex.split(line))
    return {key: value for key, _, value in pairs}
