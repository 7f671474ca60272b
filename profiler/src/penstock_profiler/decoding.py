"""Requests that decode together, and what is seen of their tokens."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

from penstock_profiler.engine import Engine, Seen, Stream

LOOK_S = 0.002
"""How often it is looked whether enough has come; times are taken where tokens arrive, not here."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """Requests under way together."""

    streams: Sequence[Stream]
    tasks: Sequence["asyncio.Task[None]"]

    def now(self) -> list[Seen]:
        """The last that each has brought."""
        return [stream.seen[-1] for stream in self.streams]

    def since(self, started: Sequence[Seen]) -> list[list[Seen]]:
        """What each has brought from then on, the last before included."""
        return [
            [seen for seen in stream.seen if seen.tokens >= start.tokens]
            for stream, start in zip(self.streams, started, strict=True)
        ]

    async def reach(self, tokens: int) -> bool:
        """Wait until each has brought so many. False where one ends before that. Raises EngineError."""
        while any(not stream.seen or stream.seen[-1].tokens < tokens for stream in self.streams):
            ended = [task for task in self.tasks if task.done()]
            for task in ended:
                task.result()
            if ended:
                return False
            await asyncio.sleep(LOOK_S)
        return True


@asynccontextmanager
async def decoding(
    engine: Engine, requests: int, prompt_tokens: int, answer_tokens: int, random: Random
) -> AsyncIterator[Decoding]:
    """All requests sent; what is left of them is cancelled at the end of the block."""
    streams = [Stream(prompt_tokens) for _ in range(requests)]
    tasks = [asyncio.create_task(engine.follow(stream, answer_tokens, random)) for stream in streams]
    try:
        yield Decoding(streams, tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
