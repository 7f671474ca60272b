"""Requests that decode concurrently, and the arrival times of their tokens."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

from penstock_profiler.engine import CompletionStream, MeasuredEngine, TokenArrival

POLL_S = 0.002
"""Interval of checks for enough tokens. It does not affect token times, which are taken on arrival."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """Concurrent requests in progress."""

    streams: Sequence[CompletionStream]
    tasks: Sequence["asyncio.Task[None]"]

    def now(self) -> list[TokenArrival]:
        """Return the last arrival of each stream."""
        return [stream.arrivals[-1] for stream in self.streams]

    def since(self, started: Sequence[TokenArrival]) -> list[list[TokenArrival]]:
        """Return the arrivals of each stream since `started`, inclusive."""
        return [
            [arrival for arrival in stream.arrivals if arrival.tokens >= start.tokens]
            for stream, start in zip(self.streams, started, strict=True)
        ]

    async def reach(self, tokens: int) -> bool:
        """Wait until each stream has `tokens` tokens; False if one ends before. Raises EngineError."""
        while any(not stream.arrivals or stream.arrivals[-1].tokens < tokens for stream in self.streams):
            ended = [task for task in self.tasks if task.done()]
            for task in ended:
                task.result()
            if ended:
                return False
            await asyncio.sleep(POLL_S)
        return True


@asynccontextmanager
async def decoding(
    engine: MeasuredEngine, requests: int, prompt_tokens: int, answer_tokens: int, random: Random
) -> AsyncIterator[Decoding]:
    """Send all requests. At the end of the block, cancel those in progress."""
    streams = [CompletionStream(prompt_tokens) for _ in range(requests)]
    tasks = [asyncio.create_task(engine.follow(stream, answer_tokens, random)) for stream in streams]
    try:
        yield Decoding(streams, tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
