"""Recorded sessions whose prompts share prefixes. `recordings/README.md` describes each and its licence."""

import gzip
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple


class RecordedTurn(NamedTuple):
    """One request of a recorded session.

    think_s: seconds from the previous answer of the session until this request; 0 for the first.
    hash_ids: ids of its prompt's blocks; equal ids are equal content up to the block's end.
    """

    think_s: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: Sequence[int]


RecordedSession = tuple[RecordedTurn, ...]


@cache
def session_recording(name: str) -> tuple[RecordedSession, ...]:
    """Return the sessions of the recording of this name, in its order."""
    text = gzip.decompress((files(__package__) / "recordings" / f"{name}.csv.gz").read_bytes()).decode()
    rows = (line.split(",") for line in text.splitlines()[1:])
    return tuple(tuple(map(_turn, turns)) for _, turns in groupby(rows, key=itemgetter(0)))


def _turn(cells: list[str]) -> RecordedTurn:
    _, think_s, prompt_tokens, output_tokens, blocks = cells
    return RecordedTurn(float(think_s), int(prompt_tokens), int(output_tokens), array("I", _ids(blocks)))


def _ids(ranges: str) -> Iterator[int]:
    """Yield the ids of ranges like `1-5 9`."""
    for run in ranges.split():
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)
