"""Continuous traffic: the official `openai` client, streaming, at a constant rate.

Open loop, on a thread of its own: a request begins at its time, whatever became of earlier ones. Nothing is
retried (`max_retries=0`), so that no loss is hidden. A request is lost if it was not rejected in OpenAI's
format (429) and its answer did not end with a finish reason.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from threading import Thread
from time import time
from types import TracebackType
from typing import Self

import httpx2
import openai

from pool_on_cluster.waiting import until

RATE_PER_S = 3.0
MOST_TOKENS = 60
"""Of an answer whose length the model decides."""
PROMPT = "Tell me how a penstock works. " * 20
LONGEST_S = 60.0
"""Of one request. Far more than any needs, so what takes longer is lost."""


@dataclass(slots=True)
class Asked:
    """One request and what came of it. Times are of the wall clock.

    replica: that serves it first, once known. problem: why it was lost. refused: it was answered 429.
    text: of its answer.
    """

    number: int
    began_s: float
    replica: str | None = None
    first_s: float | None = None
    ended_s: float | None = None
    problem: str | None = None
    refused: bool = False
    text: str = ""


Excuse = Callable[[Asked], bool]
"""Whether a lost request had to be lost."""


@dataclass(slots=True)
class Toll:
    """What a step cost: how many were asked meanwhile, refused, lost, and lost because they had to be.

    texts: of whole answers.
    """

    asked: int = 0
    refused: int = 0
    excused: int = 0
    lost: list[Asked] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)


class Traffic:
    """Asks while its context is open. answer_tokens: of each answer; None: as many as the model likes."""

    def __init__(
        self, url: str, model: str, rate_per_s: float = RATE_PER_S, answer_tokens: int | None = None
    ) -> None:
        self._url, self._model, self._rate_per_s = url, model, rate_per_s
        self._answer_tokens = answer_tokens
        self._streaming: dict[int, Asked] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="traffic", daemon=True)
        self._open: dict[int, asyncio.Task[None]] = {}
        self._begun = 0
        self._ended: list[Asked] = []
        self._excuses: list[Excuse] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self._asking: Future[None] = asyncio.run_coroutine_threadsafe(self._ask_for_ever(), self._loop)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._asking.cancel()
        asyncio.run_coroutine_threadsafe(self._cancel(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def excuse(self, excuse: Excuse) -> None:
        """Let these be lost, until the next toll is taken."""
        self._excuses.append(excuse)

    @property
    def under_way(self) -> int:
        """How many wait for their answer's end."""
        return len(self._open)

    @property
    def streaming(self) -> list[Asked]:
        """Return the requests whose first token has come, and whose end has not."""
        return [asked for asked in list(self._streaming.values()) if asked.first_s is not None]

    def more_requests(self, number: int) -> None:
        """Wait until so many more have begun."""
        enough = self._begun + number
        until(lambda: self._begun >= enough, f"{number} more requests begun", patience_s=LONGEST_S)

    def toll(self) -> Toll:
        """Wait for the end of all that have begun, and count those that ended since the last toll."""
        asyncio.run_coroutine_threadsafe(self._settled(), self._loop).result(LONGEST_S + 10)
        ended, self._ended = self._ended, []
        excuses, self._excuses = self._excuses, []
        return count_toll(ended, excuses)

    async def _ask_for_ever(self) -> None:
        url = f"{self._url}/v1"
        client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=LONGEST_S)
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        async with client:
            for number in count():
                await asyncio.sleep(start_s + number / self._rate_per_s - loop.time())
                asked = Asked(number, time())
                self._open[number] = asyncio.create_task(self._ask(client, asked))
                self._begun += 1

    async def _ask(self, client: openai.AsyncOpenAI, asked: Asked) -> None:
        self._streaming[asked.number] = asked
        try:
            await stream(client, self._model, asked, self._answer_tokens)
        except openai.RateLimitError:
            asked.refused = True
        except (openai.OpenAIError, httpx2.HTTPError, AssertionError) as error:
            asked.problem = f"{type(error).__name__}: {error}"
        asked.ended_s = time()
        self._ended.append(asked)
        del self._open[asked.number], self._streaming[asked.number]

    async def _settled(self) -> None:
        if begun := list(self._open.values()):
            await asyncio.wait(begun)

    async def _cancel(self) -> None:
        for task in (begun := list(self._open.values())):
            task.cancel()
        if begun:
            await asyncio.wait(begun)


async def stream(client: openai.AsyncOpenAI, model: str, asked: Asked, answer_tokens: int | None) -> None:
    """One chat answer, as it streams. Raises AssertionError where it is cut short, and as `openai` does."""
    response = await client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=answer_tokens or MOST_TOKENS,
        stream=True,
        extra_body=None if answer_tokens is None else {"ignore_eos": True},
    )
    asked.replica = response.headers.get("x-penstock-replica")
    tokens, finish = 0, None
    async for chunk in response.parse():
        asked.first_s = asked.first_s or time()
        if chunk.choices:
            tokens += bool(chunk.choices[0].delta.content)
            asked.text += chunk.choices[0].delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
    assert finish is not None, f"the stream ended after {tokens} chunks without a reason to finish"


def count_toll(ended: Sequence[Asked], excuses: Sequence[Excuse]) -> Toll:
    """Which of these were lost, and had not to be."""
    toll = Toll(asked=len(ended), refused=sum(asked.refused for asked in ended))
    for asked in ended:
        if asked.problem is None:
            toll.texts |= set() if asked.refused else {asked.text}
            continue
        if any(excuse(asked) for excuse in excuses):
            toll.excused += 1
        else:
            toll.lost.append(asked)
    return toll
