"""The measurements, each of one way to the engine at a time.

CPU is read from the kernel and divided by the number of requests or tokens, so that it is comparable on a
busy machine. Wall-clock figures (latency, requests per second) are not, which is why ways take turns in one
run.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from overhead.load import Streams, exchange_all, for_seconds
from overhead.machine import EngineRoute
from overhead.procfs import cpu_s, rss_mib

CONNECTIONS = 64
TOKENS_EACH = 4096
SETTLE_S = 1.0


@dataclass(slots=True)
class Measurements:
    """All measurements of one way, an entry per round, and by process if they are per process.

    few_token_cpu_us: the cost of a token with a quarter of the streams.
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


async def warm_up(way: EngineRoute) -> None:
    """Fill connection pools and load code."""
    for stream in (False, True):
        await exchange_all(way.url, range(300), 8, stream=stream)


async def single_client_latency(way: EngineRoute, results: Measurements, duration_s: float) -> None:
    """Measure latency with one connection: to a JSON answer, and to a stream's first byte."""
    whole = await exchange_all(way.url, for_seconds(duration_s), 1, stream=False)
    streamed = await exchange_all(way.url, for_seconds(duration_s), 1, stream=True)
    results.latencies_s += whole.latencies_s
    results.first_bytes_s += streamed.first_bytes_s


async def throughput(way: EngineRoute, results: Measurements, duration_s: float) -> None:
    """Measure requests per second with the way's processes on one core, and the CPU of a request in each."""
    for stream, rates, costs in (
        (False, results.requests_per_s, results.request_cpu_us),
        (True, results.streams_per_s, results.stream_cpu_us),
    ):
        before_s = {name: cpu_s(pid) for name, pid in way.pids.items()}
        exchanged = await exchange_all(way.url, for_seconds(duration_s), CONNECTIONS, stream=stream)
        rates.append(exchanged.requests / exchanged.wall_s)
        for name, pid in way.pids.items():
            costs.setdefault(name, []).append((cpu_s(pid) - before_s[name]) / exchanged.requests * 1e6)


async def tokens(way: EngineRoute, costs: dict[str, list[float]], streams: int, window_s: float) -> None:
    """Measure each process's CPU per streamed token with `streams` answers, and add it to `costs`."""
    async with streaming(way, streams) as answers:
        await asyncio.sleep(SETTLE_S)
        before_tokens, before_s = answers.tokens, {name: cpu_s(pid) for name, pid in way.pids.items()}
        await asyncio.sleep(window_s)
        answers.check()
        carried = answers.tokens - before_tokens
        for name, pid in way.pids.items():
            costs.setdefault(name, []).append((cpu_s(pid) - before_s[name]) / carried * 1e6)


async def memory(way: EngineRoute, results: Measurements, streams: int) -> None:
    """Measure resident memory with `streams` open answers. They are best effort, because of their number."""
    async with streaming(way, streams, "batch") as answers:
        await asyncio.sleep(SETTLE_S)
        results.open_mib = {name: rss_mib(pid) for name, pid in way.pids.items()}
        answers.check()


def idle_memory(way: EngineRoute, results: Measurements) -> None:
    """Measure resident memory before the first request."""
    results.idle_mib = {name: rss_mib(pid) for name, pid in way.pids.items()}


@asynccontextmanager
async def streaming(way: EngineRoute, streams: int, tier: str = "chat") -> AsyncIterator[Streams]:
    """Yield open streams, all past their first token; then close them and await their cancellation."""
    answers = Streams(way.url, TOKENS_EACH, tier)
    try:
        await answers.open(streams)
        yield answers
    finally:
        await answers.close()
        await asyncio.sleep(SETTLE_S)
