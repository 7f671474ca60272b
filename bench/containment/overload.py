"""Overload: ten times the pool's capacity for minutes, with a tenth of the clients reading nothing.

The pool is small and its model slow, so that simulated engines run in real time on a small machine. First its
capacity is measured: the admitted rate under many requests. Then requests arrive at ten times that rate,
regardless of their outcomes. Stalled clients request long answers, streamed and complete, and keep their
connections open.
"""

import asyncio
import json
import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
from containment.report import GoalRow, row
from live.pool import Kind, LivePool
from live.process import Started
from live.raw_http import post
from overhead.procfs import rss_mib

PROCESSES: dict[str, tuple[Kind, str]] = {
    "the router": ("router", "main"),
    "sidecar r0": ("sidecar", "r0"),
    "sidecar r1": ("sidecar", "r1"),
}
TIMES, STALLED_SHARE = 10, 0.1
CALIBRATION_S, SAMPLE_S, PATIENCE_S = 20.0, 5.0, 120.0
TOKENS, STALLED_TOKENS = 48, 1500
GROWTH, LEAST_ATTAINMENT = 1.10, 0.99
POOL: dict[str, Any] = {
    "engine": {"timeModel": "llama-3-70b-4xa100"},
    "tiers": [{"name": "chat", "slo": {"ttft": "3s", "tpot": "300ms"}}],
    "defaultTier": "chat",
    "scheduling": {"policy": "slos-serve", "maxRunning": 8, "maxWaiting": 64},
    "routing": {"backup": "reject"},
    "router": {"writeTimeout": "5s"},
}


@dataclass
class OverloadTraffic:
    """Sends requests to one router. statuses: counts of answers by status. stalled: answers never read."""

    address: tuple[str, int]
    statuses: Counter[str] = field(default_factory=Counter)
    stalled: int = 0

    async def send_at(self, rate: float, for_s: float) -> None:
        """Send `rate` requests per second, evenly, until all have ended; every tenth client stalls."""
        began_s, every = time.monotonic(), round(1 / STALLED_SHARE)
        async with asyncio.TaskGroup() as group:
            for number in range(round(rate * for_s)):
                await asyncio.sleep(max(0.0, began_s + number / rate - time.monotonic()))
                stalls = number % every == 0
                group.create_task(self._stall(number) if stalls else self._send(number))

    async def _send(self, number: int) -> None:
        request = _request(TOKENS, stream=number % 2 == 0, close=True)
        status = "none"
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection(*self.address)
                writer.write(request)
                answer = await reader.read(-1)
                writer.close()
                status = _status(answer)
        except (OSError, TimeoutError):
            pass
        self.statuses[status] += 1

    async def _stall(self, number: int) -> None:
        """Send a request and read nothing, until the router ends the connection or a minute has passed."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        with sock:
            try:
                await loop.sock_connect(sock, self.address)
                await loop.sock_sendall(sock, _request(STALLED_TOKENS, stream=number % 20 == 0, close=False))
            except OSError:
                return
            self.stalled += 1
            for _ in range(60):
                await asyncio.sleep(1)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    return


def _request(tokens: int, *, stream: bool, close: bool) -> bytes:
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": LivePool.model, "messages": messages, "max_tokens": tokens, "ignore_eos": True}
    headers = ["connection: close"] if close else []
    return post("/v1/chat/completions", json.dumps({**body, "stream": stream}).encode(), *headers)


def _status(answer: bytes) -> str:
    """Return the answer's status; `cut` if its end is missing."""
    if not answer:
        return "none"
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split()[1].decode()
    whole = body.endswith(b"0\r\n\r\n") if b"transfer-encoding: chunked" in head else body.endswith(b"}")
    return status if whole and b'data: {"error"' not in body else "cut"


@dataclass
class Memory:
    """Samples of each process's resident memory, in MiB."""

    processes: dict[str, Started]
    samples: dict[str, list[float]] = field(default_factory=dict)

    async def watch(self) -> None:
        """Sample until cancelled."""
        while True:
            for name, process in self.processes.items():
                self.samples.setdefault(name, []).append(rss_mib(process.pid))
            await asyncio.sleep(SAMPLE_S)

    def rows(self) -> Iterator[GoalRow]:
        """Yield each process's memory in the second tenth of the time, the middle, and the last tenth."""
        for name, samples in self.samples.items():
            tenth = max(1, len(samples) // 10)
            early, middle, late = (
                median(samples[tenth : 2 * tenth] or samples),
                median(samples[len(samples) // 2 :][:tenth]),
                median(samples[-tenth:]),
            )
            output = f"{early:.0f} → {middle:.0f} → {late:.0f} MiB ({max(samples):.0f} at most)"
            what = f"memory of {name} after a tenth, a half, all of the time"
            yield row(what, f"≤ {GROWTH} ×", output, late <= GROWTH * early)


def measured(folder: Path, minutes: float) -> list[GoalRow]:
    """Run the overload, and return the rows."""
    pool = LivePool(folder, 2, **POOL)
    try:
        pool.open()
        return asyncio.run(_overloaded(pool, minutes))
    finally:
        pool.close()


async def _overloaded(pool: LivePool, minutes: float) -> list[GoalRow]:
    address = pool.address("router", "main")
    capacity = await _capacity(pool, address)
    memory = Memory({name: pool.process(*key) for name, key in PROCESSES.items()})
    watching = asyncio.create_task(memory.watch())
    before, traffic = _demand(pool), OverloadTraffic(address)
    await traffic.send_at(TIMES * capacity, 60 * minutes)
    watching.cancel()
    after = _demand(pool)
    judged, met, arrived, admitted = (
        after[word] - before[word] for word in ("judged", "met", "arrived", "admitted")
    )
    answers = ", ".join(f"{count} × {status}" for status, count in sorted(traffic.statuses.items()))
    cut = sum(count for status, count in traffic.statuses.items() if status not in ("200", "429"))
    return [
        row(
            f"admitted requests that kept their SLO, at {TIMES} × capacity for {minutes:g} min",
            f"≥ {LEAST_ATTAINMENT:.0%}",
            f"{met / judged:.2%} of {judged} ({arrived} arrived at {TIMES * capacity:.0f}/s, {admitted} "
            f"admitted, {traffic.stalled} clients read nothing)",
            met >= LEAST_ATTAINMENT * judged,
        ),
        row("clients that read and got neither an answer nor a 429", "0", f"{cut} ({answers})", cut == 0),
        *memory.rows(),
    ]


async def _capacity(pool: LivePool, address: tuple[str, int]) -> float:
    """Return the admitted requests per second under overload."""
    before, traffic = _demand(pool), OverloadTraffic(address)
    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:

        async def send_repeatedly(number: int) -> None:
            while time.monotonic() < began_s + CALIBRATION_S:
                await traffic._send(number)

        for number in range(24):
            group.create_task(send_repeatedly(number))
    admitted = _demand(pool)["admitted"] - before["admitted"]
    return admitted / (time.monotonic() - began_s)


def _demand(pool: LivePool) -> dict[str, int]:
    answer = httpx2.get(f"{pool.admin_url()}/penstock/v1/demand", timeout=60)
    demand: dict[str, int] = answer.json()["tiers"]["chat"]
    return demand
