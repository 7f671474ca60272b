"""A replay's progress: a bar on a terminal, else a line at intervals."""

import asyncio
import threading
from collections.abc import AsyncIterator
from io import StringIO

import pytest
from loop_time import freeze, skip, thaw
from penstock_cli.replay.generator import ReplayProgress
from penstock_cli.replay.progress import LINE_EVERY_S, RATE_PERIODS, REFRESH_S, show_progress
from rich.console import Console


@pytest.fixture
async def frozen() -> AsyncIterator[None]:
    """A clock that only `skip` advances."""
    freeze()
    yield
    thaw()


def console(terminal: bool) -> Console:
    return Console(file=StringIO(), force_terminal=terminal, width=120, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


async def test_without_a_terminal_there_is_a_line_at_intervals(frozen: None) -> None:
    plain, progress = console(terminal=False), ReplayProgress()
    async with show_progress(plain, "trace", progress, 100):
        await skip(0.0)
        progress.sent, progress.ended = 50, 20
        await skip(LINE_EVERY_S / 2)
        assert written(plain) == ""
        await skip(LINE_EVERY_S / 2)
        assert written(plain) == "trace: 20 of 100 answered, 5.0/s sent, 30 in flight\n"
        progress.sent, progress.ended = 60, 60
        await skip(LINE_EVERY_S)
        assert written(plain).splitlines()[1:] == ["trace: 60 of 100 answered, 3.0/s sent, 0 in flight"]


async def test_the_rate_is_that_of_the_last_periods(frozen: None) -> None:
    plain, progress = console(terminal=False), ReplayProgress()
    async with show_progress(plain, "trace", progress, 1000):
        await skip(0.0)
        progress.sent = 100
        for _ in range(RATE_PERIODS + 1):
            await skip(LINE_EVERY_S)
    rates = [line.split(", ")[1] for line in written(plain).splitlines()]
    assert rates[0] == "10.0/s sent"
    assert rates[-2:] == [f"{100 / (LINE_EVERY_S * RATE_PERIODS):.1f}/s sent", "0.0/s sent"]


async def test_a_progress_bar_shows_answered_requests_immediately_and_at_the_end(frozen: None) -> None:
    terminal, progress = console(terminal=True), ReplayProgress()
    async with show_progress(terminal, "trace", progress, 100):
        await skip(0.0)
        assert "0/100 answered, 0.0/s sent, 0 in flight" in written(terminal)
        progress.sent, progress.ended = 10, 4
        await skip(REFRESH_S)
        assert "4/100 answered, 20.0/s sent, 6 in flight" in written(terminal)
        progress.sent, progress.ended = 100, 100
        await asyncio.sleep(0)
        assert "100/100" not in written(terminal)
    assert "100/100 answered, 20.0/s sent, 0 in flight" in written(terminal)


async def test_a_replay_that_ends_within_a_period_has_no_rate(frozen: None) -> None:
    terminal, progress = console(terminal=True), ReplayProgress()
    async with show_progress(terminal, "trace", progress, 2):
        await skip(0.0)
        progress.sent = progress.ended = 2
    assert "2/2 answered, 0.0/s sent, 0 in flight" in written(terminal)


async def test_a_bar_starts_no_thread(frozen: None) -> None:
    """It would take time of the processor from sending."""
    before = threading.active_count()
    async with show_progress(console(terminal=True), "trace", ReplayProgress(), 2):
        await skip(0.0)
        assert threading.active_count() == before
