"""Connections between real processes that are slow, break or stall: streams continue exactly."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
from live.fault_proxy import FaultProxy
from live.pool import LivePool
from live.streams import begun, same_answer, whole_answer
from patience import until

TOKENS = 100
NUMBERS = range(4)
WAYS = ("sidecar r0", "engine r0")
"""From routers to a sidecar, and from a sidecar to its engine."""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultProxy]:
    proxy = FaultProxy(tmp_path_factory.mktemp("proxy") / "toxiproxy.log")
    try:
        yield proxy
    finally:
        proxy.close()


@pytest.fixture(scope="module")
def pool_behind(proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    pool = LivePool(tmp_path_factory.mktemp("pool"), 2, through=proxy.address_through_proxy)
    try:
        pool.open()
        yield pool
    finally:
        pool.close()


async def stay_equal(pool: LivePool, harm: AbstractContextManager[None]) -> None:
    """Streams that have begun return the same answer as before, despite faults."""
    async with pool.async_client() as client:
        wholes = await asyncio.gather(*(whole_answer(client, pool, number, TOKENS) for number in NUMBERS))
        streams = await asyncio.gather(*(begun(client, pool, number, TOKENS) for number in NUMBERS))
        with harm:
            ended = await asyncio.gather(*(stream.rest() for stream in streams))
    assert {one.replica for one in ended} == {"r0", "r1"}
    for whole, one in zip(wholes, ended, strict=True):
        same_answer(whole, one)
    await asyncio.to_thread(until, lambda: pool.ready_replicas() == {"r0", "r1"}, "both in service")
    await asyncio.to_thread(until, lambda: pool.running() == 0, "engines idle")


@pytest.mark.parametrize("what", WAYS)
@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("latency", {"latency": 100, "jitter": 50}),
        ("bandwidth", {"rate": 50}),
        ("slicer", {"average_size": 40, "size_variation": 30, "delay": 10}),
    ],
)
async def test_a_slow_connection_changes_no_token(
    pool_behind: LivePool, proxy: FaultProxy, what: str, kind: str, attributes: dict[str, int]
) -> None:
    await stay_equal(pool_behind, proxy.harm(what, kind, **attributes))


@pytest.mark.parametrize("what", WAYS)
async def test_streams_whose_connection_breaks_continue_on_another_replica(
    pool_behind: LivePool, proxy: FaultProxy, what: str
) -> None:
    await stay_equal(pool_behind, proxy.cut(what))


@pytest.mark.parametrize("what", WAYS)
async def test_streams_on_a_half_open_connection_continue_on_another_replica(
    pool_behind: LivePool, proxy: FaultProxy, what: str
) -> None:
    """By keepalive between router and sidecar, by probes of an engine."""
    await stay_equal(pool_behind, proxy.half_open(what))
