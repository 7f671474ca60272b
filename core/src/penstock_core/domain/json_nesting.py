"""How deeply a JSON text is nested and how many arrays and objects it has, without building any.

A parser recurses once per level, and so does every writer after it: a text of 700 bytes can be nested deeper
than either allows. And it builds each array and object: 8 MiB of them take half a second. So requests are
bounded in both before anything is built from them. Almost all have fewer brackets than either bound, which
one pass tells; of any other, only quotes, brackets and escapes are looked at. A chat of 100 KB costs 25 us,
70 with more than 100 brackets, and 250 where it is full of escapes.
"""

from typing import NamedTuple

import numpy as np

MOST_LEVELS = 100
"""Deepest arrays and objects of a request. Schemas of tools, the deepest that clients send, stay under 20.
Python's own parser, which engines use, gives up before 1,000; orjson writes 254."""

MOST_STRUCTURES = 1 << 16
"""Most arrays and objects of a request: a chat of 10,000 messages has three times that much room."""


def _all_but(kept: bytes) -> bytes:
    return bytes(byte for byte in range(256) if byte not in kept)


_NOT_OPENING = _all_but(b"[{")
_NEITHER = _all_but(b'"[]{}')
_NOR_ESCAPED = _all_but(b'"[]{}' + b"\\/bfnrtu")
"""What follows a backslash stays behind it: each escape is still told from a quote."""

_MARKS = bytes.maketrans(b'"[{]}', b"\x00\x01\x01\xff\xff")
"""A bracket is the step that it takes; a quote is none."""


class Nesting(NamedTuple):
    """Levels of arrays and objects, and how many there are."""

    levels: int
    structures: int

    @property
    def too_much(self) -> str:
        """Which bound it is over, in words; empty where it is within both."""
        if self.levels > MOST_LEVELS:
            return f"nested deeper than {MOST_LEVELS} levels"
        if self.structures > MOST_STRUCTURES:
            return f"made of more than {MOST_STRUCTURES} arrays and objects"
        return ""


def nesting_of(text: bytes) -> Nesting:
    """Return the nesting of a JSON text. One with at most `MOST_LEVELS` brackets may have less than told."""
    brackets = len(text.translate(None, _NOT_OPENING))  # half the time of two counts
    if brackets <= MOST_LEVELS:
        return Nesting(brackets, brackets)
    if b"\\" in text:  # an escape begins where the one before it ended, so a scan from the left pairs them
        text = text.translate(None, _NOR_ESCAPED).replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = np.frombuffer(text.translate(_MARKS, _NEITHER), np.int8)
    steps = marks * (1 - (np.cumsum(marks == 0, dtype=np.int8) & 1))  # none within a text
    depth = np.cumsum(steps, dtype=np.int32)
    return Nesting(int(depth.max()), int(np.count_nonzero(steps == 1)))
