"""Clients of a pool of real processes, whose answers are known in advance."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx2
import openai
from known_answers import known_answer, known_request
from live.pool import LivePool

ANSWER_S = 180.0
"""Timeout of one answer."""

LENGTHS = (1, 20, 100, 300, 600)


@dataclass(slots=True)
class TrafficResults:
    """Results of the clients.

    outcomes: requests by outcome. wrong: answers that differ from the engine's. cut: streams that ended in an
    error event or without an end, while no router was lost. silences_s: longest pause of each complete
    stream.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    silences_s: list[float] = field(default_factory=list)
    tokens: int = 0


@dataclass(slots=True)
class SoakTraffic:
    """Sends requests at a rate to all routers of a pool. lost: time of the last loss of each router."""

    pool: LivePool
    routers: Sequence[str]
    rate_s: float
    random: Random
    results: TrafficResults = field(default_factory=TrafficResults)
    lost: dict[str, float] = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Send requests until `stop` is set, then wait for all answers."""
        number = 0
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                number += 1
                group.create_task(self._request(number, self.random.choice(self.routers), self._body(number)))
                await asyncio.sleep(self.random.expovariate(self.rate_s))

    def _body(self, number: int) -> dict[str, Any]:
        text = f"request {number} " + "of many words " * self.random.randint(0, 60)
        chat = self.random.random() < 0.5
        prompt = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        stream = self.random.random() < 0.85
        usage = {"stream_options": {"include_usage": True}} if stream else {}
        return {
            "model": self.pool.model,
            **prompt,
            "max_tokens": self.random.choice(LENGTHS),
            "ignore_eos": True,
            "stream": stream,
            **usage,
        }

    async def _request(self, number: int, router: str, body: dict[str, Any]) -> None:
        results, begun_s = self.results, time.monotonic()
        answer = _Answer()
        try:
            async with asyncio.timeout(ANSWER_S):
                await answer.read(f"{self.pool.url(router)}/v1", body)
            outcome = "answered"
            if answer.silences_s:
                results.silences_s.append(max(answer.silences_s))
        except openai.APIStatusError as error:
            outcome = f"refused ({error.status_code})"
        except (openai.APIError, httpx2.HTTPError, TimeoutError) as error:
            outcome = self._cut(number, router, begun_s, answer, error)
        results.outcomes[outcome] += 1
        results.tokens += len(answer.text) // 4
        why = _wrong(answer, body, whole=outcome == "answered")
        if why is not None:
            results.wrong.append(f"request {number}, {outcome}: {why}")

    def _cut(self, number: int, router: str, begun_s: float, answer: "_Answer", error: Exception) -> str:
        """Return the outcome of an incomplete answer."""
        if self.lost.get(router, 0.0) >= begun_s - 1.0 or isinstance(error, openai.APIConnectionError):
            return "lost with its router"
        self.results.cut.append(f"request {number} after {len(answer.text) // 4} tokens: {error}")
        return "cut"


@dataclass(slots=True)
class _Answer:
    """The received part of an answer. heads: id and time in each event."""

    text: str = ""
    usage: tuple[int, int] | None = None
    heads: set[tuple[str, int]] = field(default_factory=set)
    silences_s: list[float] = field(default_factory=list)

    async def read(self, url: str, body: dict[str, Any]) -> None:
        """Send the request, and read its answer. Raises openai.APIError, httpx2.HTTPError."""
        options: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": ANSWER_S}
        async with openai.AsyncOpenAI(base_url=url, **options) as client:
            endpoint: Any = client.chat.completions if "messages" in body else client.completions
            fields = {name: value for name, value in body.items() if name != "ignore_eos"}
            answer = await endpoint.create(**fields, extra_body={"ignore_eos": True})
            if not body["stream"]:
                self._take(answer)
                return
            last_s = time.monotonic()
            async for chunk in answer:
                now_s = time.monotonic()
                if self.text:
                    self.silences_s.append(now_s - last_s)
                last_s = now_s
                self._take(chunk)

    def _take(self, part: Any) -> None:
        self.heads.add((part.id, part.created))
        for choice in part.choices:
            message = getattr(choice, "message", None) or getattr(choice, "delta", None)
            self.text += (choice.text if message is None else message.content) or ""
        if part.usage:
            self.usage = part.usage.prompt_tokens, part.usage.completion_tokens


def _wrong(answer: _Answer, body: dict[str, Any], *, whole: bool) -> str | None:
    """Return the error in an answer; None if it is correct. An incomplete answer must be a prefix."""
    expected = known_answer(body)
    if not expected.startswith(answer.text) or (whole and answer.text != expected):
        return f"{answer.text[-80:]!r} ({len(answer.text)} of {len(expected)} characters)"
    if len(answer.heads) > 1:
        return f"ids and times change: {answer.heads}"
    counted = known_request(body).prompt_tokens, body["max_tokens"]
    if whole and answer.usage != counted:
        return f"usage {answer.usage}, not {counted}"
    return None
