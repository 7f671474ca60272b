"""Errors in the background fail the test that caused them.

Three things happen out of a test's sight, and asyncio at most logs them: a task ends by an exception that
is never awaited, a callback raises, a task is still running when its test is over. Here each fails the test.
Exceptions that Python cannot raise (in `__del__`), coroutines that are never awaited, and threads that raise
fail it by pytest's own plugins, because every warning is an error.
"""

import asyncio
import gc
import logging
from collections.abc import Generator, Iterator

import pytest

LOGGERS = ("asyncio", "grpc._cython.cygrpc")
"""They report exceptions at level ERROR: of tasks and callbacks, of methods that a gRPC server runs."""

GRPC_POLLER = "PollerCompletionQueue._handle_events"

ENDING_S = 2.0
"""Time in which a task that is about to end has to end. Only tests that leave one running wait so long."""


class Reports(logging.Handler):
    """Errors that were reported and have not failed a test yet."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._reported: list[str] = []
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        if not is_of_a_closed_loop(record):
            self._reported.append(self.format(record))

    def fail(self) -> None:
        """Fail once for the reported errors."""
        reported, self._reported = self._reported, []
        if reported:
            pytest.fail("in the background:\n" + "\n".join(reported), pytrace=False)


def is_of_a_closed_loop(record: logging.LogRecord) -> bool:
    """Return whether grpc.aio, the client of some tests, has woken the closed loop of an earlier test.

    Its poller is shared by all loops of a process, so whichever test runs then would fail.
    """
    error = record.exc_info[1] if record.exc_info else None
    return GRPC_POLLER in record.getMessage() and str(error) == "Event loop is closed"


REPORTS = pytest.StashKey[Reports]()


def pytest_configure(config: pytest.Config) -> None:
    reports = config.stash[REPORTS] = Reports()
    for name in LOGGERS:
        logging.getLogger(name).addHandler(reports)


def pytest_unconfigure(config: pytest.Config) -> None:
    for name in LOGGERS:
        logging.getLogger(name).removeHandler(config.stash[REPORTS])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """After a test and its fixtures: a loop that was closed has nothing left to report."""
    try:
        yield
    finally:
        if item.get_closest_marker("asyncio"):
            gc.collect(1)  # a task's exception is reported when the task is collected
        item.config.stash[REPORTS].fail()


@pytest.fixture(autouse=True)
def no_task_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set up before an asynchronous test's other fixtures, so that it looks when they have ended."""
    if request.node.get_closest_marker("asyncio") is None:
        yield
        return
    runner: asyncio.Runner = request.getfixturevalue("_function_scoped_runner")
    yield
    left = runner.run(_left())
    if left:
        pytest.fail("left running:\n" + "\n".join(map(repr, left)), pytrace=False)


async def _left() -> set["asyncio.Task[object]"]:
    """Tasks that do not end by themselves."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    return (await asyncio.wait(others, timeout=ENDING_S))[1] if others else set()
