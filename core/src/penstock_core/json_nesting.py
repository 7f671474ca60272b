"""How deeply a JSON text is nested, told without building what it holds.

A parser recurses once per level, and so does every writer after it: a text of 700 bytes can be nested deeper
than either allows. So requests are bounded in depth before anything is built from them. Almost all have fewer
brackets than the bound, which two counts tell; of any other, only quotes and brackets are looked at.
"""

import numpy as np

MOST_LEVELS = 100
"""Deepest arrays and objects of a request. Schemas of tools, the deepest that clients send, stay under 20.
Python's own parser, which engines use, gives up before 1,000; orjson writes 254."""

_NEITHER = bytes(byte for byte in range(256) if byte not in b'"[]{}')
_MARKS = bytes.maketrans(b'"[{]}', b"\x00\x01\x01\xff\xff")
"""A bracket is the step that it takes; a quote is none."""


def nested_deeper(text: bytes, levels: int = MOST_LEVELS) -> bool:
    """Return whether a valid JSON text has arrays and objects within one another to more than `levels`."""
    if text.count(b"[") + text.count(b"{") <= levels:
        return False
    if b"\\" in text:  # an escape begins where the one before it ended, so a scan from the left pairs them
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = np.frombuffer(text.translate(_MARKS, _NEITHER), np.int8)
    outside = 1 - (np.cumsum(marks == 0, dtype=np.int8) & 1)
    depth = np.cumsum(marks * outside, dtype=np.int32)
    return bool(depth.max() > levels)
