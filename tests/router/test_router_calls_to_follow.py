"""The number of calls that one request takes through the router.

A *return* is the way back from a function to its caller in another file, counted once per pair of functions,
as in `tests/core/test_calls_to_follow.py`. The router's own files are followed. Calls from them into layers
below, which several processes share (`routing`, `runtime`, `core`), are counted separately.

`docs/concepts/calls.md` draws and counts these calls.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from scripted.replica import ScriptedReplica
from scripted.router import running_router

DOZEN = 12
PAGE = Path(__file__).parents[2] / "docs/concepts/calls.md"

OWN = "penstock_router/"
SHARED = ("penstock_routing/", "penstock_runtime/", "penstock_core/")

Function = tuple[str, str]
"""File, from its package, and name."""

Pairs = set[tuple[Function, Function]]


def function_of(frame: FrameType) -> Function | None:
    """Return None unless it is a function of these packages."""
    code = frame.f_code
    file = code.co_filename.rpartition("/src/")[2]
    known = file.startswith((OWN, *SHARED)) and not code.co_name.startswith("<")
    return (file, code.co_qualname) if known else None


@contextmanager
def followed(pairs: Pairs) -> Iterator[None]:
    """Note each function that begins, with the function that called it."""
    begun = set[FrameType]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        entered = function_of(frame) if event == "call" and frame not in begun else None
        if entered is None:
            return
        begun.add(frame)  # a resumed coroutine is not a new call
        back = frame.f_back
        while back is not None and function_of(back) is None:
            back = back.f_back
        caller = None if back is None else function_of(back)
        if caller is not None:
            pairs.add((caller, entered))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)


def drawn() -> set[tuple[str, str, str]]:
    section = PAGE.read_text().partition("## One request\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^ +(\w+)->>(\w+): (\S+)$", section, re.MULTILINE))


def counted() -> tuple[int, int]:
    """Returns and shared calls in the page's table."""
    row = re.search(r"^\| one request \|[^|]+\| (\d+) \| (\d+), into", PAGE.read_text(), re.MULTILINE)
    assert row is not None
    return int(row[1]), int(row[2])


async def test_a_request_is_followed_with_fewer_than_a_dozen_returns() -> None:
    pairs: Pairs = set()
    async with running_router(ScriptedReplica("r0")) as router:
        await router.chat()  # work of the first request only is not counted
        with followed(pairs):
            await router.chat()
    ours = {(caller, callee) for caller, callee in pairs if caller[0].startswith(OWN)}
    returns = {(a, b) for a, b in ours if b[0].startswith(OWN) and a[0] != b[0]}
    shared = {(a, b) for a, b in ours if b[0].startswith(SHARED)}
    arrows = {(Path(a[0]).stem, Path(b[0]).stem, b[1]) for a, b in returns}
    assert arrows == drawn()
    assert len(returns) < DOZEN, sorted(returns)
    assert (len(returns), len(shared)) == counted(), sorted(shared)
