"""Errors in the background fail the test: each of these tests passes by its own assertions."""

import logging
from pathlib import Path

import pytest
from background import is_of_a_closed_loop

INI = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
timeout_method = signal
"""
BEFORE = """
import asyncio, logging, threading, pytest

async def fails():
    raise ValueError("on the quiet")
"""


def outcome(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, test: str) -> pytest.RunResult:
    """Run one test module in its own pytest."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    pytester.makeini(INI)
    pytester.makepyfile(BEFORE + test)
    return pytester.runpytest_subprocess("-p", "background")


WRONG = {
    "a task fails that nobody awaits": """
async def test():
    asyncio.ensure_future(fails())
    await asyncio.sleep(0)
""",
    "a task's exception is lost in a cycle": """
async def test():
    loop = {"task": asyncio.ensure_future(fails())}
    loop["itself"] = loop
    await asyncio.sleep(0)
""",
    "a callback raises": """
async def test():
    asyncio.get_running_loop().call_soon(lambda: 1 // 0)
    await asyncio.sleep(0)
""",
    "a coroutine is not awaited": """
async def test():
    fails()
""",
    "a task is left running": """
LEFT = []

async def test():
    LEFT.append(asyncio.ensure_future(asyncio.Event().wait()))
""",
    "a fixture leaves a task running": """
LEFT = []

@pytest.fixture
async def served():
    LEFT.append(asyncio.ensure_future(asyncio.Event().wait()))
    yield

async def test(served):
    pass
""",
    "a thread raises": """
def test():
    thread = threading.Thread(target=lambda: 1 // 0)
    thread.start()
    thread.join()
""",
    "a destructor raises": """
class Broken:
    def __del__(self):
        raise ValueError('on the quiet')

def test():
    Broken()
""",
    "a gRPC server's method raises": """
def test():
    logging.getLogger("grpc._cython.cygrpc").exception("Unexpected [X] raised by servicer method [Y]")
""",
    "the loop never hears what it waits for": """
@pytest.mark.timeout(1)
async def test():
    await asyncio.Event().wait()
""",
    "a loop runs inside a test that is not asynchronous": """
def test():
    async def main():
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(0)
    asyncio.run(main())
""",
}


@pytest.mark.parametrize("test", WRONG.values(), ids=WRONG)
def test_a_background_error_fails_the_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, test: str
) -> None:
    counted = outcome(pytester, monkeypatch, test).parseoutcomes()
    assert counted.get("failed", 0) + counted.get("errors", 0) >= 1


def test_a_task_that_ends_with_its_fixture_fails_no_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = """
@pytest.fixture
async def served():
    task = asyncio.ensure_future(asyncio.Event().wait())
    yield
    task.cancel()

async def test(served):
    ending = asyncio.ensure_future(asyncio.sleep(0.01))
    await asyncio.sleep(0)
"""
    outcome(pytester, monkeypatch, test).assert_outcomes(passed=1)


def test_grpc_s_poller_fails_no_test_that_runs_after_the_loop_s_own() -> None:
    try:
        raise RuntimeError("Event loop is closed")
    except RuntimeError as error:
        info = (RuntimeError, error, error.__traceback__)
    text = "Exception in callback PollerCompletionQueue._handle_events()()"
    record = logging.LogRecord("asyncio", logging.ERROR, "", 0, text, None, info)
    assert is_of_a_closed_loop(record)
    other = logging.LogRecord("asyncio", logging.ERROR, "", 0, "Exception in callback f()", None, info)
    assert not is_of_a_closed_loop(other)
