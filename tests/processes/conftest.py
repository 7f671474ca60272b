"""One pool of real processes for all tests, restored between them; some modules start their own."""

from collections.abc import Generator, Iterator

import pytest
from live.open_pool import OpenPool
from live.pool import LivePool


@pytest.fixture(scope="module")
def open_module_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenPool]:
    """Opens pools that live as long as the module's tests."""
    opener = OpenPool(tmp_path_factory)
    try:
        yield opener
    finally:
        opener.close()


@pytest.fixture(scope="session")
def shared_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    """Two replicas and a router, for all tests: starting a pool takes longer than most of them."""
    opener = OpenPool(tmp_path_factory)
    try:
        yield opener(2)
    finally:
        opener.close()


@pytest.fixture
def pool(shared_pool: LivePool) -> LivePool:
    """The shared pool, idle and with all processes running, whatever the previous test did."""
    shared_pool.restore()
    return shared_pool


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the processes' logs under a failing test."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            pools = value.opened if isinstance(value, OpenPool) else [value]
            for pool in (pool for pool in pools if isinstance(pool, LivePool)):
                report.sections += [(f"log of {name}", text[-6000:]) for name, text in pool.logs()]
    return report
