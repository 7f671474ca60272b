"""Compares Penstock's HTTP server with uvicorn and Granian, with an app that streams as engine and router do.

    uv run --with granian==2.8.7 --with uvicorn==0.54.0 python bench/http_servers.py

The others run it as a plain ASGI app. All streams get a chunk of an OpenAI stream's length at the same tick.
The servers take turns. The bench prints for each: CPU of all its processes per chunk written, from /proc;
whether closing a connection in the middle of a stream ends the app's work for it; whether SIGTERM lets an
open stream end.
"""

import argparse
import asyncio
import os
import signal
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop
from penstock_runtime.http_request import HttpRequest
from penstock_runtime.serving import listen, run_process, serving

CHUNK = (
    b'data: {"id":"cmpl-%s","object":"text_completion","created":1,"model":"m","choices":[{"index":0,'
    % (b"x" * 32)
    + b'"text":" word","logprobs":null,"finish_reason":null}]}\n\n'
)
TICK_S = 0.03
Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class Ticks:
    """Wakes all streams at once, as an engine's iteration does."""

    def __init__(self) -> None:
        self.open = 0
        self._next: asyncio.Future[None] | None = None

    async def next(self) -> None:
        if self._next is None or self._next.done():
            loop = asyncio.get_running_loop()
            self._next = loop.create_future()
            loop.call_later(TICK_S, self._next.set_result, None)
        await asyncio.shield(self._next)


TICKS = Ticks()


async def penstock_app(request: HttpRequest) -> None:
    if request.path == "/open":
        await request.answer(str(TICKS.open).encode())
        return
    chunks = int(await request.body(100))
    request.start(headers=[(b"content-type", b"text/event-stream")])
    TICKS.open += 1
    try:
        for _ in range(chunks):
            await TICKS.next()
            if request.gone:
                return
            await request.send(CHUNK)
        await request.end(b"data: [DONE]\n\n")
    finally:
        TICKS.open -= 1


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        return
    headers = [(b"content-type", b"text/event-stream")]
    if scope["path"] == "/open":
        headers = [(b"content-length", b"%d" % len(str(TICKS.open)))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": str(TICKS.open).encode(), "more_body": False})
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    TICKS.open += 1
    streaming = asyncio.create_task(stream(send, int(body)))
    gone = asyncio.create_task(disconnected(receive))
    await asyncio.wait({streaming, gone}, return_when=asyncio.FIRST_COMPLETED)
    for task in (streaming, gone):
        task.cancel()
    await asyncio.gather(
        streaming, gone, return_exceptions=True
    )  # Granian's send raises when a client has disconnected
    TICKS.open -= 1


async def disconnected(receive: Receive) -> None:
    await receive()


async def stream(send: Send, chunks: int) -> None:
    for _ in range(chunks):
        await TICKS.next()
        await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


def command(server: str, port: int) -> list[str]:
    if server == "penstock":
        return [sys.executable, str(Path(__file__).resolve()), "--serve", str(port)]
    if server == "uvicorn":
        uvicorn = f"--loop uvloop --http httptools --no-access-log --log-level critical --port {port}"
        return [sys.executable, "-m", "uvicorn", *uvicorn.split(), "http_servers:app"]
    granian = "--interface asginl --loop uvloop --workers 1 --runtime-threads 1 --no-ws --log-level critical"
    return [
        sys.executable, "-m", "granian", *granian.split(), "--host", "127.0.0.1", "--port", str(port),
        "--workers-kill-timeout", "10", "http_servers:app",
    ]  # fmt: skip


async def serve_penstock(port: int, stop: asyncio.Event) -> None:
    async with serving(penstock_app, listen("127.0.0.1", port), 10):
        await stop.wait()


class Client(asyncio.Protocol):
    """Counts chunks, and records whether its stream ended properly."""

    def __init__(self) -> None:
        self.chunks, self.ended = 0, False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.chunks += data.count(b"data: ")
        if b"[DONE]" in data:
            self.ended = True
            self.closed.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


async def connect(port: int, chunks: int) -> tuple[asyncio.Transport, Client]:
    transport, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
    body = b"%d" % chunks
    transport.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    return transport, client


def processes(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *[below for child in children for below in processes(int(child))]]


def cpu_s(pid: int) -> float:
    ticks = 0
    for each in processes(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def open_streams(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /open HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return int(answer.rsplit(b"\r\n\r\n", 1)[1])


async def holds_within(seconds: float, condition: Callable[[], Awaitable[bool]]) -> bool:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        try:
            if await condition():
                return True
        except OSError:
            pass
        await asyncio.sleep(0.05)
    return False


async def none_open(port: int) -> bool:
    return await open_streams(port) == 0


async def cost_us(pid: int, port: int, streams: int, seconds: float) -> float:
    """Return the CPU microseconds per chunk."""
    connections = [await connect(port, 1 << 30) for _ in range(streams)]
    await asyncio.sleep(1)
    chunks, cpu = sum(client.chunks for _, client in connections), cpu_s(pid)
    await asyncio.sleep(seconds)
    chunks, cpu = sum(client.chunks for _, client in connections) - chunks, cpu_s(pid) - cpu
    for transport, _ in connections:
        transport.abort()
    return cpu / chunks * 1e6


async def examine(server: str, port: int, options: argparse.Namespace) -> tuple[list[float], bool, bool]:
    process = await asyncio.create_subprocess_exec(*command(server, port), cwd=Path(__file__).parent)
    if not await holds_within(20, lambda: none_open(port)):
        raise SystemExit(f"{server} did not start")
    costs: list[float] = []
    ends_work = True
    for streams in options.streams:
        costs.append(await cost_us(process.pid, port, streams, options.seconds))
        ends_work = await holds_within(5, lambda: none_open(port)) and ends_work
    _, client = await connect(port, 60)
    await asyncio.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(20):
        await client.closed
    code = await process.wait()
    return costs, ends_work, client.ended and code == 0


async def compared(options: argparse.Namespace) -> None:
    found: dict[str, list[tuple[list[float], bool, bool]]] = {"penstock": [], "uvicorn": [], "granian": []}
    port = 20_000 + os.getpid() % 10_000
    for _ in range(options.rounds):
        for server, results in found.items():
            port += 1
            results.append(await examine(server, port, options))
    print(
        "server   "
        + "".join(f"{n:>5} streams" for n in options.streams)
        + "   ends work of gone clients   ends streams at SIGTERM"
    )
    for server, results in found.items():
        medians = [
            statistics.median(costs[i] for costs, _, _ in results) for i in range(len(options.streams))
        ]
        ends_work, ends = all(r[1] for r in results), all(r[2] for r in results)
        figures = "".join(f"{cost:10.1f} us" for cost in medians)
        print(f"{server:9}{figures}   {'yes' if ends_work else 'no':>25}   {'yes' if ends else 'no':>22}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--streams", default="64,256", type=lambda text: [int(n) for n in text.split(",")], metavar="N,…")
    add("--seconds", default=6.0, type=float, help="seconds of measurement per server (default %(default)s)")
    add(
        "--rounds",
        default=3,
        type=int,
        help="turns of each server; medians are printed (default %(default)s)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        sys.exit(run_process(lambda stop: serve_penstock(int(sys.argv[2]), stop)))
    uvloop.run(compared(parsed()))
