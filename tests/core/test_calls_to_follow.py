"""The number of calls that one admission and one step of slos-serve take.

A *stop* is a function of core that is entered; a *return* is the way back from a function to its caller in
another file. Each is counted once for each function, and for each pair of caller and callee, however often
they run: a reader follows a loop once. The vocabulary is not followed: requests and views (`domain/`),
durations of batches (`timing/`), and properties of any class say by their names what they return. A compiled
loop is one stop, and a generator that continues is no new call.

`docs/concepts/calls.md` draws and counts these calls.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import penstock_core
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.policies.slos_serve.policy import SlosServe
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation

CORE = str(Path(penstock_core.__file__).parent)
VOCABULARY = ("domain", "timing")
DOZEN = 12
PAGE = Path(__file__).parents[2] / "docs/concepts/calls.md"
ROW = re.compile(r"^\| (one \w+) \|[^|]+\| (\d+) \| (\d+),[^|]+\| (\d+) \|$", re.MULTILINE)

Function = tuple[str, str]
"""File, relative to core, and name."""


def function_of(frame: FrameType) -> Function | None:
    """None where it is not core's, or a comprehension, to which a reader does not go."""
    code = frame.f_code
    if not code.co_filename.startswith(CORE) or code.co_name.startswith("<"):
        return None
    return code.co_filename.removeprefix(CORE + "/"), code.co_qualname


def is_followed(function: Function) -> bool:
    file, name = function
    return not file.startswith(VOCABULARY) and not is_property(file, name)


@cache
def is_property(file: str, name: str) -> bool:
    holder, _, member = name.rpartition(".")
    module = import_module("penstock_core." + file.removesuffix(".py").replace("/", "."))
    return isinstance(getattr(module, holder, None), type) and isinstance(
        vars(getattr(module, holder)).get(member), property | cached_property
    )


def callers_of(frame: FrameType) -> Iterator[Function]:
    """The functions of core from which a frame was reached, the last one first."""
    back = frame.f_back
    while back is not None:
        if (function := function_of(back)) is not None:
            yield function
        back = back.f_back


class Calls:
    """Calls between functions of core.

    stops: functions that are followed. pairs: of a followed caller and a followed callee. all_pairs: of any.
    """

    def __init__(self) -> None:
        self.stops: set[Function] = set()
        self.pairs: set[tuple[Function, Function]] = set()
        self.all_pairs: set[tuple[Function, Function]] = set()
        self._begun: set[FrameType] = set()

    @property
    def returns(self) -> set[tuple[Function, Function]]:
        return {(caller, callee) for caller, callee in self.pairs if caller[0] != callee[0]}

    @property
    def counts(self) -> tuple[int, int, int]:
        """Returns, calls into the vocabulary, and calls across files with those within it."""
        across = {(caller, callee) for caller, callee in self.all_pairs if caller[0] != callee[0]}
        below = [1 for caller, callee in across if is_followed(caller) and not is_followed(callee)]
        return len(self.returns), len(below), len(across)

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        entered = function_of(frame) if event == "call" and frame not in self._begun else None
        if entered is None:
            return
        self._begun.add(frame)
        callers = list(callers_of(frame))
        self.all_pairs.update((caller, entered) for caller in callers[:1])
        if is_followed(entered):
            self.stops.add(entered)
            self.pairs.update([(caller, entered) for caller in callers if is_followed(caller)][:1])


@contextmanager
def followed() -> Iterator[Calls]:
    calls, before = Calls(), sys.getprofile()
    sys.setprofile(calls.see)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def asks(name: str, ttft_s: float = 1.0) -> Job:
    return new_job(Request(name, "tier", 10.0, 700, 4096, Targets(ttft_s, 0.1)), 50, best_effort=False)


def replica() -> ReplicaView:
    """Decodes and queued prompts, an engine with a drafter."""
    running = tuple([advance(asks(f"d{i}"), 700, 1, 10.0) for i in range(20)])
    waiting = (asks("w0"), asks("w1", 2.0))
    kv, model = KvCache(5000, 4000, 16), time_model("llama-3-8b-a100")
    return ReplicaView(10.0, 10.0, running, waiting, kv, Limits(), model, Speculation(4, 0.8))


def calls_of(act: Callable[[ReplicaView], object]) -> Calls:
    act(replica())  # compilation and caching at first use are not counted
    with followed() as calls:
        act(replica())
    return calls


def drawn(heading: str) -> set[tuple[str, str, str]]:
    """Arrows of the drawing under a heading of the page: caller's file, callee's file and its function."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^ +(\w+)->>(\w+): (\S+)$", section, re.MULTILINE))


def arrows(calls: Calls) -> set[tuple[str, str, str]]:
    return {(Path(caller[0]).stem, Path(callee[0]).stem, callee[1]) for caller, callee in calls.returns}


def counted(subject: str) -> tuple[int, int, int]:
    """The row of the page's table."""
    return {row[0]: (int(row[1]), int(row[2]), int(row[3])) for row in ROW.findall(PAGE.read_text())}[subject]


def test_an_admission_can_be_traced_through_fewer_than_a_dozen_returns() -> None:
    calls = calls_of(lambda view: SlosServe().admit(view, [asks("new")]))
    assert arrows(calls) == drawn("One admission")
    assert calls.counts == counted("one admission")
    assert len(calls.returns) < DOZEN, sorted(calls.returns)
    assert len(calls.stops) <= 35, sorted(calls.stops)


def test_a_step_can_be_traced_through_fewer_than_a_dozen_returns() -> None:
    calls = calls_of(lambda view: SlosServe().step(view, None))
    assert arrows(calls) == drawn("One step")
    assert calls.counts == counted("one step")
    assert len(calls.returns) < DOZEN, sorted(calls.returns)
    assert len(calls.stops) <= 35, sorted(calls.stops)
