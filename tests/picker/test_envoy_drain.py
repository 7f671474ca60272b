"""In which order an Envoy is drained, and how long it is waited for."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from penstock_picker import envoy_drain, main
from penstock_picker.envoy_drain import POLL_S, drain_envoy
from penstock_picker.options import Options, parse
from penstock_pool import Pool
from penstock_runtime.http_request import HttpRequest
from penstock_runtime.serving import serving
from scripted.router import pool_with
from structlog.testing import capture_logs
from virtual_time import now_s, run


class Envoy:
    """An administration interface. left: open requests, of each read in turn, the last for ever.

    did: what it was asked for, and the waits between. clock_s: goes on with the waits.
    """

    def __init__(self) -> None:
        self.left, self.did, self.status, self.clock_s = [0], list[object](), 200, 1000.0

    async def answer(self, request: HttpRequest) -> None:
        if request.path != "/stats":
            self.did.append(f"{request.method} {request.path}")
            await request.answer(b"OK", status=self.status)
            return
        left = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        page = b"http.other.downstream_rq_active: 9\nhttp.api.downstream_rq_active: %d\n" % left
        await request.answer(page if left >= 0 else b"no such thing")

    async def sleep(self, seconds: float) -> None:
        self.did.append(seconds)
        self.clock_s += seconds
        assert len(self.did) < 100, "it waits for ever"


@pytest.fixture
async def envoy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Envoy]:
    envoy = Envoy()
    monkeypatch.setattr(envoy_drain, "asyncio", SimpleNamespace(sleep=envoy.sleep))
    monkeypatch.setattr(envoy_drain, "monotonic", lambda: envoy.clock_s)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "admin.sock"))
        listener.listen()
        async with serving(envoy.answer, listener, 0.0):
            yield envoy


async def drained(tmp_path: Path, lame_duck_s: float, drain_s: float) -> list[dict[str, object]]:
    """The log of a drain."""
    with capture_logs() as logs:
        await drain_envoy(tmp_path / "admin.sock", lame_duck_s, drain_s)
    return [dict(line) for line in logs]


async def test_a_drain_fails_readiness_closes_listeners_and_awaits_requests(
    envoy: Envoy, tmp_path: Path
) -> None:
    envoy.left = [2, 1, 0]
    (line,) = await drained(tmp_path, 3.0, 60.0)
    assert envoy.did == ["POST /healthcheck/fail", 3.0, "POST /drain_listeners", POLL_S, POLL_S]
    assert (line["event"], line["unfinished"]) == ("envoy drained", 0)


async def test_the_time_before_listeners_close_is_at_most_the_drain(envoy: Envoy, tmp_path: Path) -> None:
    await drained(tmp_path, 30.0, 5.0)
    assert envoy.did[1] == 5.0


async def test_requests_are_awaited_at_most_for_the_drain(envoy: Envoy, tmp_path: Path) -> None:
    envoy.left = [3]
    (line,) = await drained(tmp_path, 0.0, 2 * POLL_S)
    assert envoy.did[3:] == [POLL_S] * 3
    assert line["unfinished"] == 3


async def test_an_envoy_without_a_request_count_has_no_requests(envoy: Envoy, tmp_path: Path) -> None:
    envoy.left = [-1]
    (line,) = await drained(tmp_path, 0.0, 60.0)
    assert (line["unfinished"], envoy.did[3:]) == (0, [])


async def test_an_envoy_that_refuses_to_drain_is_logged_and_ignored(envoy: Envoy, tmp_path: Path) -> None:
    envoy.status = 500
    (line,) = await drained(tmp_path, 0.0, 60.0)
    assert (line["event"], envoy.did) == ("envoy not drained", ["POST /healthcheck/fail"])
    assert "500" in str(line["why"])


FLAGS = ("-f", "pool.yaml", "--replica", "r0=h:1", "--ext-authz-port", "0")


def drain_of(
    monkeypatch: pytest.MonkeyPatch, options: Options, pool: Pool
) -> tuple[list[tuple[object, ...]], float]:
    """How a stopped picker drains an Envoy, and how long it takes."""
    drains: list[tuple[object, ...]] = []

    async def noted(*given: object) -> None:
        drains.append(given)

    async def story() -> float:
        await main._drain(options, pool)
        return now_s()

    monkeypatch.setattr(main, "drain_envoy", noted)
    return drains, run(story())


def test_a_picker_without_an_envoy_serves_until_gateways_have_switched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = parse([*FLAGS, "--lame-duck-s", "4"])
    assert drain_of(monkeypatch, options, pool_with()) == ([], 4.0)


def test_a_picker_drains_its_envoy_for_the_pools_time_or_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = (*FLAGS, "--envoy-admin", "/run/envoy", "--lame-duck-s", "4")
    pool = pool_with()
    drains, took_s = drain_of(monkeypatch, parse(beside), pool)
    assert drains == [(Path("/run/envoy"), 4.0, pool.spec.router.drain_timeout_s)]
    assert took_s == 0.0
    drains, _ = drain_of(monkeypatch, parse([*beside, "--drain-s", "0"]), pool)
    assert drains == [(Path("/run/envoy"), 4.0, 0.0)]
