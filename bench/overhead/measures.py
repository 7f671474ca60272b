"""The questions, each asked of one way to the engine at a time.

CPU is read from the kernel and divided by what was carried, so that it means the same on a busy machine. Wall
figures (latency, requests a second) do not, which is why ways take turns within one run.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from overhead.load import Streams, exchange_all, for_seconds
from overhead.machine import Way
from overhead.procfs import cpu_s, rss_mib

CONNECTIONS = 64
TOKENS_EACH = 4096
SETTLE_S = 1.0


@dataclass(slots=True)
class Measurements:
    """All that was measured of one way, an entry per round; by process where it is per process.

    few_token_cpu_us: with a quarter of the streams.
    """

    latencies_s: list[float] = field(default_factory=list)
    first_bytes_s: list[float] = field(default_factory=list)
    requests_per_s: list[float] = field(default_factory=list)
    streams_per_s: list[float] = field(default_factory=list)
    request_cpu_us: dict[str, list[float]] = field(default_factory=dict)
    stream_cpu_us: dict[str, list[float]] = field(default_factory=dict)
    token_cpu_us: dict[str, list[float]] = field(default_factory=dict)
    few_token_cpu_us: dict[str, list[float]] = field(default_factory=dict)
    idle_mib: dict[str, float] = field(default_factory=dict)
    open_mib: dict[str, float] = field(default_factory=dict)


async def warm_up(way: Way) -> None:
    """Pools filled, code paths loaded."""
    for stream in (False, True):
        await exchange_all(way.url, range(300), 8, stream=stream)


async def single_client_latency(way: Way, results: Measurements, duration_s: float) -> None:
    """Latency with one connection: to a whole JSON answer, and to a stream's first byte."""
    whole = await exchange_all(way.url, for_seconds(duration_s), 1, stream=False)
    streamed = await exchange_all(way.url, for_seconds(duration_s), 1, stream=True)
    results.latencies_s += whole.latencies_s
    results.first_bytes_s += streamed.first_bytes_s


async def throughput(way: Way, results: Measurements, duration_s: float) -> None:
    """Requests a second with the way's processes on one core, and what one costs each of them."""
    for stream, rates, costs in (
        (False, results.requests_per_s, results.request_cpu_us),
        (True, results.streams_per_s, results.stream_cpu_us),
    ):
        before_s = {name: cpu_s(pid) for name, pid in way.pids.items()}
        exchanged = await exchange_all(way.url, for_seconds(duration_s), CONNECTIONS, stream=stream)
        rates.append(exchanged.requests / exchanged.wall_s)
        for name, pid in way.pids.items():
            costs.setdefault(name, []).append((cpu_s(pid) - before_s[name]) / exchanged.requests * 1e6)


async def tokens(way: Way, costs: dict[str, list[float]], streams: int, window_s: float) -> None:
    """What a streamed token costs each process while `streams` answers stream steadily: added to `costs`."""
    async with streaming(way, streams) as answers:
        await asyncio.sleep(SETTLE_S)
        before_tokens, before_s = answers.tokens, {name: cpu_s(pid) for name, pid in way.pids.items()}
        await asyncio.sleep(window_s)
        answers.check()
        carried = answers.tokens - before_tokens
        for name, pid in way.pids.items():
            costs.setdefault(name, []).append((cpu_s(pid) - before_s[name]) / carried * 1e6)


async def memory(way: Way, results: Measurements, streams: int) -> None:
    """Resident memory with `streams` answers open. Best effort: no replica meets TPOT targets of so many."""
    async with streaming(way, streams, "batch") as answers:
        await asyncio.sleep(SETTLE_S)
        results.open_mib = {name: rss_mib(pid) for name, pid in way.pids.items()}
        answers.check()


def idle_memory(way: Way, results: Measurements) -> None:
    """Resident memory before anything was asked."""
    results.idle_mib = {name: rss_mib(pid) for name, pid in way.pids.items()}


@asynccontextmanager
async def streaming(way: Way, streams: int, tier: str = "chat") -> AsyncIterator[Streams]:
    """Open streams, all of them past their first token; closed, and their cancels settled, on leaving."""
    answers = Streams(way.url, TOKENS_EACH, tier)
    try:
        await answers.open(streams)
        yield answers
    finally:
        await answers.close()
        await asyncio.sleep(SETTLE_S)
