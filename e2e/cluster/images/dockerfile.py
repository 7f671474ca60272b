"""Reads the recipe of a target from a Dockerfile.

Base image, environment, user, entry point, labels, and the command that installs or the folders that are
copied come from the file itself, so that the image equals that of any builder.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from pathlib import Path
from string import Template

INSTALL = "/src/images/install"
CHMOD = "--chmod="


@dataclass(frozen=True, slots=True)
class Copy:
    """Folders of the checkout whose contents are copied into one folder of the image.

    mode: mode of the copied files and folders; None to keep it.
    """

    sources: Sequence[str]
    folder: str
    mode: int | None


@dataclass(frozen=True, slots=True)
class Recipe:
    """The recipe of a target.

    base: the base image, without its tag. install: the command that fills /opt/penstock, in the environment
    `build_env`. copies: what is copied from the checkout.
    """

    base: str
    install: Sequence[str]
    copies: Sequence[Copy]
    build_env: Mapping[str, str]
    env: Mapping[str, str]
    labels: Mapping[str, str]
    user: str
    entrypoint: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Stage:
    """A stage with its inherited instructions by keyword, in the file's order. base: its external image."""

    base: str = ""
    instructions: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def lines(self, word: str) -> Sequence[str]:
        return self.instructions.get(word, ())

    def pairs(self, word: str) -> dict[str, str]:
        pairs = (pair.partition("=") for line in self.lines(word) for pair in shlex.split(line))
        return {key: value for key, _, value in pairs}


def read_recipe(path: Path, target: str) -> Recipe:
    """Return a target's recipe. Raises ValueError if it is unknown, or neither installs once nor copies."""
    stages = _stages(path.read_text())
    if target not in stages:
        raise ValueError(f"{path}: no target {target}")
    stage, arguments = stages[target], stages[""].pairs("ARG")
    built_in, copies = _copied(stage)
    build = stages.get(built_in, _Stage())
    runs = [_without_flags(line) for line in build.lines("RUN")]
    install = [words for words in runs if words[0] == INSTALL]
    if len(install) != 1 - bool(copies):
        raise ValueError(f"{path}: {target}'s build stage must run {INSTALL} once, where nothing is copied")
    return Recipe(
        base=Template(stage.base).substitute(arguments).partition(":")[0],
        install=install[0] if install else (),
        copies=copies,
        build_env=build.pairs("ENV"),
        env=stage.pairs("ENV"),
        labels={
            name: Template(value).substitute(stage.pairs("ARG"))
            for name, value in stage.pairs("LABEL").items()
        },
        user=stage.lines("USER")[-1],
        entrypoint=json.loads(stage.lines("ENTRYPOINT")[-1]),
    )


def targets(path: Path) -> list[str]:
    """Return the names of stages with an entry point, which are images."""
    return [name for name, stage in _stages(path.read_text()).items() if stage.lines("ENTRYPOINT")]


def _copied(stage: _Stage) -> tuple[str, list[Copy]]:
    """Return the stage that files are copied from, "" if none, and the copies from the checkout."""
    lines = [shlex.split(line) for line in stage.lines("COPY")]
    stages = [words[0].removeprefix("--from=") for words in lines if words[0].startswith("--from=")]
    return "".join(stages[-1:]), [_copy(words) for words in lines if not words[0].startswith("--from=")]


def _without_flags(line: str) -> list[str]:
    """Return the words of a command, without the flags of `RUN` before it."""
    return [*dropwhile(lambda word: word.startswith("--"), shlex.split(line))]


def _copy(words: Sequence[str]) -> Copy:
    modes = [int(word.removeprefix(CHMOD), 8) for word in words if word.startswith(CHMOD)]
    *sources, folder = (word for word in words if not word.startswith("--"))
    return Copy(sources, folder, modes[0] if modes else None)


def _stages(text: str) -> dict[str, _Stage]:
    """Return stages by name, with inherited instructions; "" has the instructions before the first stage."""
    stages: dict[str, _Stage] = {}
    name, base, lines = "", "", dict[str, list[str]]()
    for word, rest in [*_instructions(text), ("FROM", "")]:
        if word == "FROM":
            stages[name] = _Stage(base, lines)
            parent, _, name = rest.partition(" AS ")
            inherited = stages.get(parent, _Stage(parent))
            base = inherited.base
            lines = {word: [*earlier] for word, earlier in inherited.instructions.items()}
        else:
            lines.setdefault(word, []).append(rest)
    return stages


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    for line in re.sub(r"\\\n", " ", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word and not word.startswith("#"):
            yield word, rest.strip()
