"""Continuous traffic: the official `openai` client, streaming, at a constant rate.

The load is an open loop on its own thread: a request starts at its time whether or not earlier ones have
ended. Requests are not retried (`max_retries=0`), so that losses are visible. A request is lost if it was not
rejected (429) and its answer did not end with a finish reason.
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
MAX_TOKENS = 60
"""Output tokens of an answer whose length the model decides, at most."""
PROMPT = "Tell me how a penstock works. " * 20
TIMEOUT_S = 60.0
"""Timeout of one request. Far above any normal duration, so a request that exceeds it is lost."""


@dataclass(slots=True)
class SentRequest:
    """One request and its outcome. Times are wall-clock times.

    replica: the first one that serves it, once known. problem: why it was lost. rejected: answered 429.
    text: the answer's text.
    """

    number: int
    started_s: float
    replica: str | None = None
    first_s: float | None = None
    ended_s: float | None = None
    problem: str | None = None
    rejected: bool = False
    text: str = ""


LossFilter = Callable[[SentRequest], bool]
"""Returns whether a request may be lost, because the process that served it was killed."""


@dataclass(slots=True)
class Summary:
    """The requests that ended during a step.

    sent, rejected, allowed_losses: numbers of requests. allowed_losses: lost, and allowed to be. lost: all
    others that were lost. texts: the different texts of complete answers.
    """

    sent: int = 0
    rejected: int = 0
    allowed_losses: int = 0
    lost: list[SentRequest] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)


class PoolTraffic:
    """Context manager that sends requests.

    answer_tokens: output tokens of each answer; None: the model decides.
    host: the host of the request, if it is not that of the URL.
    """

    def __init__(
        self,
        url: str,
        model: str,
        rate_per_s: float = RATE_PER_S,
        answer_tokens: int | None = None,
        host: str | None = None,
    ) -> None:
        self._url, self._model, self._rate_per_s = url, model, rate_per_s
        self._headers = {} if host is None else {"host": host}
        self._answer_tokens = answer_tokens
        self._streaming: dict[int, SentRequest] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="traffic", daemon=True)
        self._open: dict[int, asyncio.Task[None]] = {}
        self._started = 0
        self._ended: list[SentRequest] = []
        self._allowed_losses: list[LossFilter] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self._sending: Future[None] = asyncio.run_coroutine_threadsafe(self._send_requests(), self._loop)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._sending.cancel()
        asyncio.run_coroutine_threadsafe(self._cancel(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def allow_losses(self, may_be_lost: LossFilter) -> None:
        """Allow these requests to be lost, until the next call of `summary`."""
        self._allowed_losses.append(may_be_lost)

    @property
    def streaming(self) -> list[SentRequest]:
        """Requests that have received their first token and have not ended."""
        return [request for request in list(self._streaming.values()) if request.first_s is not None]

    def wait_for_requests(self, number: int) -> None:
        """Wait until this number of further requests has started."""
        enough = self._started + number
        until(lambda: self._started >= enough, f"{number} more requests started", timeout_s=TIMEOUT_S)

    def summary(self) -> Summary:
        """Wait until all requests in progress have ended, and summarize those since the last call."""
        asyncio.run_coroutine_threadsafe(self._all_ended(), self._loop).result(TIMEOUT_S + 10)
        ended, self._ended = self._ended, []
        filters, self._allowed_losses = self._allowed_losses, []
        return summarize(ended, filters)

    async def _send_requests(self) -> None:
        url = f"{self._url}/v1"
        client = openai.AsyncOpenAI(
            base_url=url, api_key="none", max_retries=0, timeout=TIMEOUT_S, default_headers=self._headers
        )
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        async with client:
            for number in count():
                await asyncio.sleep(start_s + number / self._rate_per_s - loop.time())
                request = SentRequest(number, time())
                self._open[number] = asyncio.create_task(self._send(client, request))
                self._started += 1

    async def _send(self, client: openai.AsyncOpenAI, request: SentRequest) -> None:
        self._streaming[request.number] = request
        try:
            await stream(client, self._model, request, self._answer_tokens)
        except openai.RateLimitError:
            request.rejected = True
        except (openai.OpenAIError, httpx2.HTTPError, AssertionError) as error:
            request.problem = f"{type(error).__name__}: {error}"
        request.ended_s = time()
        self._ended.append(request)
        del self._open[request.number], self._streaming[request.number]

    async def _all_ended(self) -> None:
        if open_tasks := list(self._open.values()):
            await asyncio.wait(open_tasks)

    async def _cancel(self) -> None:
        for task in (open_tasks := list(self._open.values())):
            task.cancel()
        if open_tasks:
            await asyncio.wait(open_tasks)


async def stream(
    client: openai.AsyncOpenAI, model: str, request: SentRequest, answer_tokens: int | None
) -> None:
    """Stream one chat answer. Raises AssertionError if it is truncated, and the errors of `openai`."""
    response = await client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=answer_tokens or MAX_TOKENS,
        stream=True,
        extra_body=None if answer_tokens is None else {"ignore_eos": True},
    )
    request.replica = response.headers.get("x-penstock-replica")
    tokens, finish = 0, None
    async for chunk in response.parse():
        request.first_s = request.first_s or time()
        if chunk.choices:
            tokens += bool(chunk.choices[0].delta.content)
            request.text += chunk.choices[0].delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
    assert finish is not None, f"the stream ended after {tokens} chunks without a finish reason"


def summarize(ended: Sequence[SentRequest], filters: Sequence[LossFilter]) -> Summary:
    """Summarize the requests that have ended. filters: select requests that may be lost."""
    summary = Summary(sent=len(ended), rejected=sum(request.rejected for request in ended))
    for request in ended:
        if request.problem is None:
            summary.texts |= set() if request.rejected else {request.text}
            continue
        if any(allowed(request) for allowed in filters):
            summary.allowed_losses += 1
        else:
            summary.lost.append(request)
    return summary
