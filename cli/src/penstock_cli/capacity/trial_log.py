"""A file of trial results, one line of JSON each, so that a search can be resumed.

A line's key is a digest of everything that determines the result: the trial's values, and the source code of
core, the simulator and the searches. After a change to any of them, old lines are ignored.
"""

from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from penstock_cli.capacity.trial import Trial, TrialResult
from penstock_cli.failure import Failure

DIGESTED_PACKAGES = ("penstock_core", "penstock_simulator", "penstock_cli.capacity")
COUNTS = ("promoted", "prompt_tokens", "cached_tokens", "admitted", "admitted_missed", "imbalance")
KEY_DIGITS = 24
"""Hexadecimal digits of a trial's key."""


class TrialLog:
    """Trial results, read once from a file and appended to it. Without a path they are kept in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._code = path, code_digest()
        self._known: dict[str, TrialResult] = {}
        self._file: Any = None

    def __enter__(self) -> Self:
        if self._path is not None:
            try:
                self._known = dict(_lines(self._path)) if self._path.exists() else {}
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("ab")
            except OSError as error:
                raise Failure(f"--resume {self._path}: {error.strerror}", bad_input=True) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def lookup(self, trial: Trial) -> TrialResult | None:
        """Return the stored result of an equal trial; None if there is none, or if it ended too early."""
        known = self._known.get(self._key(trial))
        if known is None:
            return None
        if known.missed > trial.most_misses:
            return TrialResult(known.requests, trial.most_misses + 1, complete=False)
        return known if known.complete else None

    def record(self, trial: Trial, tally: TrialResult) -> None:
        """Store a result, and flush it to the file."""
        key = self._key(trial)
        self._known[key] = tally
        if self._file is not None:
            self._file.write(orjson.dumps({"key": key, **trial.as_json(), **tally._asdict()}) + b"\n")
            self._file.flush()

    def _key(self, trial: Trial) -> str:
        simulated = {**trial.as_json(), "most_misses": None}  # it only ends the simulation earlier
        values = orjson.dumps([self._code, simulated], option=orjson.OPT_SORT_KEYS)
        return sha256(values).hexdigest()[:KEY_DIGITS]


def _lines(path: Path) -> Iterator[tuple[str, TrialResult]]:
    """Yield keys and results. Remove an incomplete last line, which a crash may leave."""
    *whole, rest = path.read_bytes().split(b"\n")
    if rest:
        path.write_bytes(b"".join(line + b"\n" for line in whole))
    for number, line in enumerate(whole, start=1):
        try:
            row = orjson.loads(line)
            yield row["key"], _tally(row)
        except (KeyError, TypeError, ValueError):
            raise Failure(f"--resume {path}: line {number} is not a trial result", bad_input=True) from None


def _tally(row: dict[str, Any]) -> TrialResult:
    spots = tuple((tier, ttft, tpot) for tier, ttft, tpot in row["spots"])
    counts = {name: row[name] for name in COUNTS}
    return TrialResult(row["requests"], row["missed"], row["complete"], spots, **counts)


def code_digest() -> str:
    """Return a digest of the source and data of core, the simulator and the searches."""
    digest = sha256()
    for package in DIGESTED_PACKAGES:
        for name, content in sorted(_contents(files(package), package)):
            digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()


def _contents(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        path = f"{name}/{entry.name}"
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _contents(entry, path)
        elif entry.is_file():
            yield path, entry.read_bytes()
