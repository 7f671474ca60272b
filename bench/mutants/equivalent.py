"""Mutants that make no observable difference: reviewed, with reasons, in `equivalent.toml`.

A mark identifies a mutant by its file, the text of its line and the change as the probe prints it. A mark
that matches no mutant is an error, and so is one that matches more mutants than it states.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants.mutations import Mutant

EQUIVALENT = Path(__file__).with_name("equivalent.toml")


@dataclass(frozen=True, slots=True)
class EquivalentMark:
    """A mark of mutants.

    line: text of the line without indentation. change: `was -> text`. why: why the change is unobservable.
    times: number of mutants with this line and this change.
    """

    file: str
    line: str
    change: str
    why: str
    times: int = 1


class InvalidMark(Exception):
    """A mark matches a different number of mutants than it states."""


def marks_of(file: Path = EQUIVALENT) -> list[EquivalentMark]:
    """Read the marks of a file."""
    return [EquivalentMark(**mark) for mark in tomllib.loads(file.read_text()).get("equivalent", [])]


def marked(root: Path, mutants: Sequence[Mutant], marks: Sequence[EquivalentMark]) -> set[Mutant]:
    """Return the marked mutants. All marks must be for the files of the mutants. Raises InvalidMark."""
    return {mutant for mark in marks for mutant in _of(root, mutants, mark)}


def _of(root: Path, mutants: Sequence[Mutant], mark: EquivalentMark) -> list[Mutant]:
    lines = (root / mark.file).read_text().splitlines()
    found = [
        mutant
        for mutant in mutants
        if (mutant.path, mutant.change) == (mark.file, mark.change)
        and lines[mutant.line - 1].strip() == mark.line
    ]
    if len(found) != mark.times:
        raise InvalidMark(f"matches {len(found)} mutants: {mark}")
    return found
