"""Streams of a pool, beside the same answers in one piece."""

from dataclasses import dataclass, field
from typing import Any

import openai
from live.pool import LivePool


@dataclass(frozen=True, slots=True)
class Ended:
    """An answer. heads: the id and the time in each of its events."""

    replica: str
    text: str
    usage: dict[str, Any]
    reason: str | None
    heads: set[tuple[str, int]]


@dataclass(slots=True)
class Begun:
    """A stream whose first text has arrived. `rest` reads it to its end."""

    replica: str
    chunks: Any
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    heads: set[tuple[str, int]] = field(default_factory=set)

    def take(self, chunk: Any) -> None:
        self.heads.add((chunk.id, chunk.created))
        for choice in chunk.choices:
            self.text += (choice.delta.content if hasattr(choice, "delta") else choice.text) or ""
            self.reason = choice.finish_reason or self.reason
        if chunk.usage:
            self.usage = counts(chunk.usage)

    async def rest(self) -> Ended:
        async for chunk in self.chunks:
            self.take(chunk)
        return Ended(self.replica, self.text, self.usage, self.reason, self.heads)


def asked(pool: LivePool, number: int, tokens: int) -> dict[str, Any]:
    """A request: even numbers are chats, odd ones completions."""
    output = f"prompt {number} " * (number + 1)
    prompt: dict[str, Any] = (
        {"prompt": output} if number % 2 else {"messages": [{"role": "user", "content": output}]}
    )
    bounds = {"max_tokens": tokens, "temperature": 0, "extra_body": {"ignore_eos": True}}
    return {"model": pool.model, **prompt, **bounds}


async def whole_answer(client: openai.AsyncOpenAI, pool: LivePool, number: int, tokens: int) -> Ended:
    """The answer in one piece."""
    endpoint: Any = client.completions if number % 2 else client.chat.completions
    answer = await endpoint.create(**asked(pool, number, tokens))
    (choice,) = answer.choices
    text = choice.text if number % 2 else choice.message.content
    return Ended("", text, counts(answer.usage), choice.finish_reason, {(answer.id, answer.created)})


async def begun(client: openai.AsyncOpenAI, pool: LivePool, number: int, tokens: int) -> Begun:
    """The same as a stream."""
    endpoint: Any = client.completions if number % 2 else client.chat.completions
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = await endpoint.create(**asked(pool, number, tokens), **usage)
    stream = Begun(chunks.response.headers["x-penstock-replica"], chunks)
    while not stream.text:
        stream.take(await anext(chunks))
    return stream


def counts(usage: Any) -> dict[str, Any]:
    named: dict[str, Any] = usage.model_dump(include={"prompt_tokens", "completion_tokens", "total_tokens"})
    return named


def same_answer(whole: Ended, one: Ended) -> None:
    """Assert that a stream brought the whole answer, as one."""
    assert one.text == whole.text
    assert (one.usage, one.reason) == (whole.usage, whole.reason)
    assert len(one.heads) == 1
