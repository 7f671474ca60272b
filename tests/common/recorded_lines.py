"""Compares results with recorded ones, and reports where the difference begins.

A file has a digest for some lines at a time: it stays small, and the lines themselves are in the report of a
failure. With `PENSTOCK_RECORD=1` in the environment, what is found is recorded.
"""

import json
import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

TOGETHER = 16
"""Lines with one digest."""


def assert_recorded(file: Path, which: str, lines: Sequence[str]) -> None:
    """Raise AssertionError with the first lines that are not as recorded. which: the record's name there."""
    recorded = json.loads(file.read_text()) if file.exists() else {}
    if os.environ.get("PENSTOCK_RECORD"):
        recorded[which] = " ".join(_digests(lines))
        file.write_text(json.dumps(recorded, indent=0, sort_keys=True) + "\n")
        return
    now, before = _digests(lines), recorded[which].split()
    differing = [at for at, both in enumerate(zip(now, before, strict=False)) if both[0] != both[1]]
    at = TOGETHER * (differing[0] if differing else min(len(now), len(before)))
    assert now == before, "\n".join([f"{which}, from here on:", *lines[at : at + TOGETHER]])


def _digests(lines: Sequence[str]) -> list[str]:
    parts = ["\n".join(lines[at : at + TOGETHER]) for at in range(0, len(lines), TOGETHER)]
    return [blake2b(part.encode(), digest_size=3).hexdigest() for part in parts]
