"""Streams of well-behaved clients, checked to the last byte, while something else misbehaves.

A simulated engine's answer follows from its first words. So each byte of a
stream is known but two things: when it was created, and which tokens share an event.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

import httpx2
from live.pool_file import MODEL
from patience import PATIENCE_S
from penstock_simulator.http.synthetic_text import WORDS, synthetic_text

EVENT = re.compile(
    rb'data: \{"id":"cmpl-(?P<id>[^"]+)","object":"text_completion","created":(?P<created>\d+),'
    rb'"model":"[^"]+","choices":\[\{"index":0,"text":"(?P<text>[a-z ]+)","logprobs":null,"finish_reason":'
    rb'(?P<finish>null|"length","stop_reason":null)\}\]\}\n\n'
)
VOICES = range(7 * len(WORDS))
"""Ways through the words that differ."""

DONE = b"data: [DONE]\n\n"


def difference(data: bytes, id: str, tokens: int) -> str | None:
    """Return the error in a stream that should be `id`'s with this many tokens, or None."""
    if not data.endswith(DONE):
        return f"ends with {data[-300:]!r}"
    events = data.removesuffix(DONE)
    text, at, created = "", 0, b""
    while at < len(events):
        event = EVENT.match(events, at)
        if event is None or event["id"] != id.encode() or (created and event["created"] != created):
            return f"has at byte {at} {events[at : at + 300]!r}"
        at, created = event.end(), event["created"]
        text += event["text"].decode()
        if (event["finish"] == b"null") == (at == len(events)):
            return f"finishes at byte {at} of {len(events)}"
    if not any(synthetic_text(range(tokens), voice) == text for voice in VOICES):
        return f"says {text!r}, which is not what {tokens} tokens synthetic_text"
    return None


@dataclass
class ConcurrentStreams:
    """Keeps so many streams running through each router.

    urls: routers. finished: streams that ended as they should. harmed: what happened to the others.
    """

    urls: Sequence[str]
    streams_each: int = 6
    tokens: int = 120
    finished: int = 0
    harmed: list[str] = field(default_factory=list)
    _ids: "count[int]" = field(default_factory=count)
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["ConcurrentStreams"]:
        """Streams run until the block ends, and each is read to its own end."""
        limits = httpx2.Limits(max_connections=None)
        async with (
            httpx2.AsyncClient(timeout=PATIENCE_S, limits=limits) as client,
            asyncio.TaskGroup() as group,
        ):
            for url in self.urls:
                for _ in range(self.streams_each):
                    group.create_task(self._stream_on(client, url))
            try:
                yield self
            finally:
                self._over.set()

    async def _stream_on(self, client: httpx2.AsyncClient, url: str) -> None:
        while not self._over.is_set() and not self.harmed:
            id = f"victim-{next(self._ids)}"
            problem = await self._problem(client, url, id)
            if problem is None:
                self.finished += 1
            else:
                self.harmed.append(f"{id} {problem}")

    async def _problem(self, client: httpx2.AsyncClient, url: str, id: str) -> str | None:
        body = {
            "model": MODEL,
            "prompt": "hello",
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "stream": True,
        }
        try:
            answer = await client.post(f"{url}/v1/completions", json=body, headers={"x-request-id": id})
        except httpx2.HTTPError as error:
            return f"was cut: {error!r}"
        if answer.status_code != 200:
            return f"was answered {answer.status_code} {answer.text}"
        return difference(answer.content, id, self.tokens)
