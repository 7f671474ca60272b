"""The router's log line of each request, at level debug."""

import logging
from collections.abc import Iterator

import pytest
import structlog
from patience import eventually
from scripted.replica import ScriptedReplica
from scripted.router import running_router
from structlog.testing import LogCapture


@pytest.fixture
def lines() -> Iterator[LogCapture]:
    before, captured = structlog.get_config(), LogCapture()
    structlog.configure(processors=[captured], cache_logger_on_first_use=False)
    yield captured
    structlog.configure(**before)


def level(name: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, name)))


async def test_each_request_has_a_line_with_its_figures(lines: LogCapture) -> None:
    level("DEBUG")
    async with running_router(ScriptedReplica("r0")) as router:
        await router.chat({"x-request-id": "r-1"}, stream=True)
        await eventually(lambda: any(line["event"] == "ended" for line in lines.entries))
    [line] = [line for line in lines.entries if line["event"] == "ended"]
    reported = {name: line[name] for name in ("request", "tier", "verdict", "hops", "ending")}
    assert reported == {
        "request": "r-1",
        "tier": "chat",
        "verdict": "admitted",
        "hops": 1,
        "ending": "answered",
    }
    assert 0 < line["ttft_s"] <= line["e2e_s"]


async def test_without_the_flag_nothing_is_logged(lines: LogCapture) -> None:
    level("INFO")
    async with running_router(ScriptedReplica("r0")) as router:
        await router.chat(stream=True)
        await router.counted(
            'penstock_router_requests_total{ending="answered",reason="",tier="chat",verdict="admitted"}'
        )
    assert not [line for line in lines.entries if line["event"] == "ended"]
