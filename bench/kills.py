"""Kills sidecars and engines under load (kill -9), and reports the outcome of their streams.

    make bench-kills

Real processes on loopback: three replicas with simulated engines, and a router. Requests arrive at a constant
rate. After a number of requests, when the previous process is ready again, a replica's engine or sidecar is
killed, in turns, and restarted. Each streamed answer is compared with the unstreamed answer.

Prints for each kind: streams on the replica, streams that moved, were cut, or had wrong text; the longest
pause of each moved stream at its client; and the admitted requests that met their SLO. Exit code 1 if a
stream was cut or wrong.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import openai
from live.pool import Kind, LivePool
from live.streams import Ended, asked, counts, whole_answer
from overhead.load import percentile

TTFT_S, TPOT_S = 2.0, 0.1
TIERS = [
    {"name": "chat", "slo": {"ttft": f"{TTFT_S:g}s", "tpot": f"{TPOT_S * 1e3:g}ms"}},
    {"name": "batch", "bestEffort": True},
]
REPLICAS = 3
KINDS: tuple[Kind, ...] = ("engine", "sidecar")
TEXTS, TOKENS = 20, 200
UP_S = 3.0
"""Seconds until a killed process is restarted."""


@dataclass(slots=True)
class TimedStream:
    """One request. times_s: arrival times of its events with text. problem: how it was cut or wrong."""

    number: int
    began_s: float
    replica: str = ""
    admitted: bool = False
    times_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    problem: str = ""

    @property
    def kept(self) -> bool:
        """Whether it met its tier's targets."""
        tpot_s = (self.times_s[-1] - self.times_s[0]) / (len(self.times_s) - 1)
        return self.times_s[0] - self.began_s <= TTFT_S and tpot_s <= TPOT_S

    @property
    def pause_s(self) -> float:
        """Longest time between two of its tokens."""
        return max(after - before for before, after in zip(self.times_s, self.times_s[1:], strict=False))


@dataclass(slots=True)
class Kill:
    """A killed process, the time, and the streams on its replica."""

    kind: Kind
    replica: str
    streams: list[TimedStream]


def main() -> int:
    """Run the bench, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=300, help="number of requests (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second (default: %(default)s)")
    parser.add_argument("--every", type=int, default=30, help="requests between kills (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-kills-") as folder:
        pool = LivePool(Path(folder), REPLICAS, tiers=TIERS)
        try:
            pool.open()
            streams, kills = asyncio.run(measured(pool, options))
            print(*rows(pool, streams, kills, options), sep="\n")
        finally:
            pool.close()
    return 1 if any(stream.problem for stream in streams) else 0


async def measured(pool: LivePool, options: argparse.Namespace) -> tuple[list[TimedStream], list[Kill]]:
    """Send the requests and kill processes; return all streams and kills."""
    streams: list[TimedStream] = []
    kills: list[Kill] = []
    restarts: list[asyncio.Task[None]] = []
    killed_at = 0
    targets = cycle((kind, replica) for replica in pool.replicas for kind in KINDS)
    async with pool.async_client() as client:
        whole_answers = (whole_answer(client, pool, number, TOKENS) for number in range(TEXTS))
        wholes = await asyncio.gather(*whole_answers)
        begin_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(options.requests):
                await asyncio.sleep(begin_s + number / options.rate - time.monotonic())
                stream = TimedStream(number, time.monotonic())
                streams.append(stream)
                group.create_task(read(client, pool, stream, wholes[number % TEXTS]))
                back = not restarts or restarts[-1].done()
                if back and number >= killed_at + options.every:
                    killed_at = number
                    kind, replica = next(targets)
                    there = [one for one in streams if one.replica == replica and not one.ended_s]
                    kills.append(Kill(kind, replica, there))
                    pool.kill(kind, replica)
                    restarts.append(group.create_task(start_again(pool, kind, replica)))
    return streams, kills


async def start_again(pool: LivePool, kind: Kind, replica: str) -> None:
    """Restart a process, as its supervisor does."""
    await asyncio.sleep(UP_S)
    await asyncio.to_thread(pool.start, kind, replica)


async def read(client: openai.AsyncOpenAI, pool: LivePool, stream: TimedStream, whole: Ended) -> None:
    """Read one stream to its end, and record what was wrong with it."""
    number = stream.number % TEXTS
    endpoint: Any = client.completions if number % 2 else client.chat.completions
    text, usage, reason, heads = "", dict[str, Any](), None, set()
    try:
        chunks = await endpoint.create(
            **asked(pool, number, TOKENS), stream=True, stream_options={"include_usage": True}
        )
        stream.replica = chunks.response.headers["x-penstock-replica"]
        stream.admitted = chunks.response.headers["x-penstock-verdict"] == "admitted"
        async for chunk in chunks:
            heads.add((chunk.id, chunk.created))
            for choice in chunk.choices:
                new = (choice.delta.content if hasattr(choice, "delta") else choice.text) or ""
                text += new
                reason = choice.finish_reason or reason
                if new:
                    stream.times_s.append(time.monotonic())
            usage = counts(chunk.usage) if chunk.usage else usage
    except openai.OpenAIError as error:
        stream.problem = f"cut: {error}"
    else:
        if (text, usage, reason) != (whole.text, whole.usage, whole.reason) or len(heads) != 1:
            stream.problem = f"wrong: {text!r} {usage} {reason}"
    stream.ended_s = time.monotonic()


def rows(
    pool: LivePool, streams: list[TimedStream], kills: list[Kill], options: argparse.Namespace
) -> list[str]:
    """Return the table, and a line for each stream that was cut or wrong."""
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    lines = [f"{len(streams)} requests of {TOKENS} tokens, {options.rate:g} a second, load {load}"]
    lines.append(
        f"{'killed':9}{'kills':>6}{'streams':>9}{'cut':>5}{'wrong':>7}"
        f"{'pause p50 s':>13}{'p99 s':>7}{'kept SLO %':>12}"
    )
    moved_ids = {id(stream) for kill in kills for stream in kill.streams}
    groups: dict[str, list[TimedStream]] = {
        kind: [one for kill in kills if kill.kind == kind for one in kill.streams] for kind in KINDS
    }
    groups |= {"none": [stream for stream in streams if id(stream) not in moved_ids]}
    for kind, there in groups.items():
        cut = sum(stream.problem.startswith("cut") for stream in there)
        wrong = sum(stream.problem.startswith("wrong") for stream in there)
        whole = [stream for stream in there if not stream.problem]
        pauses_s = [stream.pause_s for stream in whole] or [0.0]
        admitted = [stream.kept for stream in whole if stream.admitted] or [False]
        lines.append(
            f"{kind:9}{sum(kill.kind == kind for kill in kills):6}{len(there):9}{cut:5}{wrong:7}"
            f"{percentile(pauses_s, 0.5):13.3f}{percentile(pauses_s, 0.99):7.3f}"
            f"{100 * sum(admitted) / len(admitted):12.1f}"
        )
    lines += [f"{stream.number}: {stream.problem}" for stream in streams if stream.problem]
    failovers = pool.router_value("penstock_router_failovers_total")
    return [*lines, f"sent to another replica before their first byte: {failovers:g}"]


if __name__ == "__main__":
    sys.exit(main())
