"""A client with raw HTTP/1.1 over asyncio, so that its own cost is small.

`exchange_all` is a closed loop of `connections` that each send the next request after the previous answer;
`exchange_at` is an open loop, which sends at a rate regardless of answers. `Streams` opens many streamed
answers and counts their tokens.
"""

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools


class BadAnswer(Exception):
    """A response with a status other than 200. The message is its body."""


def request_bytes(url: str, *, stream: bool, max_tokens: int, tier: str = "chat") -> bytes:
    """Return a chat request of ordinary size."""
    body = {
        "model": "bench",
        "messages": [{"role": "user", "content": "Tell me a story about a mill. " * 8}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": stream,
    }
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\n"
        f"content-type: application/json\r\nx-penstock-tier: {tier}\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class ClientConnection(asyncio.Protocol):
    """One connection. done: completed at the end of the current answer."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.first_at_s = 0.0
        self.tokens = 0
        self.hops = 0
        self.replica = b""
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpResponseParser(self)

    def send(self, request: bytes) -> asyncio.Future[None]:
        """Send a request. The future completes with the answer."""
        self.done = self.loop.create_future()
        self.first_at_s = 0.0
        self.tail = b""
        self.transport.write(request)
        return self.done

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        if self.first_at_s == 0.0:
            self.first_at_s = time.perf_counter()
        self.tail = (self.tail + body)[-4096:] if self.parser.get_status_code() != 200 else body
        self.tokens += body.count(b'"delta"')

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"x-penstock-hops":
            self.hops = int(value)
        elif name == b"x-penstock-replica":
            self.replica = value

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        self.parser = httptools.HttpResponseParser(self)
        if self.done.done():
            return
        if status == 200:
            self.done.set_result(None)
        else:
            self.done.set_exception(BadAnswer(f"{status}: {self.tail.decode(errors='replace')}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(BadAnswer("connection lost"))
            self.done.exception()  # nothing may wait for it


async def connect(url: str) -> ClientConnection:
    host, _, port = urlsplit(url).netloc.partition(":")
    _, connection = await asyncio.get_running_loop().create_connection(ClientConnection, host, int(port))
    return connection


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Results of a closed loop per request: seconds to the end of the answer and its first byte, and hops."""

    wall_s: float
    latencies_s: list[float]
    first_bytes_s: list[float]
    hops: list[int]

    @property
    def requests(self) -> int:
        return len(self.latencies_s)


def for_seconds(duration_s: float) -> Iterator[None]:
    """Yield until `duration_s` has passed."""
    end_s = time.perf_counter() + duration_s
    while time.perf_counter() < end_s:
        yield


async def exchange_all(url: str, turns: Iterable[object], connections: int, *, stream: bool) -> Exchanged:
    """Send a one-token request for each turn over `connections`, each connection one at a time."""
    request = request_bytes(url, stream=stream, max_tokens=1)
    left = iter(turns)
    latencies_s: list[float] = []
    first_bytes_s: list[float] = []
    hops: list[int] = []

    async def one(connection: ClientConnection) -> None:
        for _ in left:
            sent_s = time.perf_counter()
            await connection.send(request)
            latencies_s.append(time.perf_counter() - sent_s)
            first_bytes_s.append(connection.first_at_s - sent_s)
            hops.append(connection.hops)

    opened = [await connect(url) for _ in range(connections)]
    began_s = time.perf_counter()
    await asyncio.gather(*map(one, opened))
    wall_s = time.perf_counter() - began_s
    for connection in opened:
        connection.transport.close()
    return Exchanged(wall_s, latencies_s, first_bytes_s, hops)


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer of an open loop. latency_s: from its planned time to its end. replica: its name."""

    latency_s: float
    replica: bytes


async def exchange_at(url: str, per_s: float, duration_s: float) -> list[Answered]:
    """Send one-token requests evenly, whatever is answered; return the answers."""
    request = request_bytes(url, stream=False, max_tokens=1)
    idle: deque[ClientConnection] = deque()
    answers: list[Answered] = []

    async def one(due_s: float) -> None:
        connection = idle.pop() if idle else await connect(url)
        connection.replica = b""
        await connection.send(request)
        answers.append(Answered(time.perf_counter() - due_s, connection.replica))
        idle.append(connection)

    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(per_s * duration_s)):
            due_s = began_s + number / per_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            group.create_task(one(due_s))
    for connection in idle:
        connection.transport.close()
    return answers


@dataclass(slots=True)
class Streams:
    """Many streamed answers at once."""

    url: str
    tokens_each: int
    tier: str = "chat"
    connections: list[ClientConnection] = field(default_factory=list)
    answers: list[asyncio.Future[None]] = field(default_factory=list)

    async def open(self, streams: int) -> None:
        """Open the streams, and return when each has its first token."""
        request = request_bytes(self.url, stream=True, max_tokens=self.tokens_each, tier=self.tier)
        for _ in range(streams):
            connection = await connect(self.url)
            self.answers.append(connection.send(request))
            self.connections.append(connection)
        while not all(connection.tokens for connection in self.connections):
            self.check()
            await asyncio.sleep(0.02)

    def check(self) -> None:
        """Raise BadAnswer if a stream has ended, which must not happen during a measurement."""
        for answer, connection in zip(self.answers, self.connections, strict=True):
            if answer.done():
                answer.result()
                raise BadAnswer(f"a stream ended early: {connection.tail.decode(errors='replace')}")

    @property
    def tokens(self) -> int:
        """Tokens received so far on all streams."""
        return sum(connection.tokens for connection in self.connections)

    async def close(self) -> None:
        """Close all connections."""
        for connection in self.connections:
            connection.transport.close()
        await asyncio.sleep(0)


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of all values are."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def interleave(rounds: int, targets: list[str]) -> Iterator[tuple[int, str]]:
    """Yield each target once per round; each round begins one target later, so that none is always first."""
    for number in range(rounds):
        shift = number % len(targets)
        yield from zip(itertools.repeat(number), targets[shift:] + targets[:shift], strict=False)
