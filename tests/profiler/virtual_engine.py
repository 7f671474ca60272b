"""An engine whose iterations take a time model's durations, in virtual time.

It replaces aiohttp's session: requests and answers are those of the wire.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
import orjson
from penstock_core.timing.time_model import BatchWork, Term, TimeModel, chunk_work
from penstock_profiler import MeasuredEngine
from penstock_profiler.engine import ACCEPTED, DRAFTED
from virtual_time import now_s

TRANSPORT_S = 0.004
MODEL = TimeModel(
    "virtual", (Term(token_s=0.0001, fixed_s=0.005),), context_token_s=1e-7, prefill_work_s=1e-8
)


@dataclass(eq=False)
class Request:
    prompt_tokens: int
    max_tokens: int
    tokens: int = 0
    events: "asyncio.Queue[dict[str, Any]]" = field(default_factory=asyncio.Queue)


@dataclass
class VirtualEngine:
    """Batches continuously. It replaces aiohttp's session: requests and answers are those of the wire.

    mixes: whether prompts and decodes share iterations. ends_after: tokens after which answers end.
    drafted, accepted: draft tokens of an iteration, of each request. slowdown: of the machine at a time.
    read_token_s: time that its server takes to read a token of a prompt, before the request waits.
    """

    mixes: bool = True
    ends_after: int = 10**9
    drafted: int = 0
    accepted: int = 0
    error: str = ""
    read_token_s: float = 0.0
    slowdown: Callable[[float], float] = lambda at_s: 1.0
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=lambda: {DRAFTED: 0, ACCEPTED: 0})
    iterating: "asyncio.Task[None] | None" = None

    @asynccontextmanager
    async def post(self, url: str, *, data: bytes, headers: dict[str, str]) -> AsyncIterator["Reply"]:
        body = orjson.loads(data)
        request = Request(len(body["prompt"]), min(body["max_tokens"], self.ends_after))
        self.asked.append((request.prompt_tokens, body["max_tokens"]))
        await asyncio.sleep(TRANSPORT_S + self.read_token_s * request.prompt_tokens)
        self.waiting.append(request)
        if self.iterating is None or self.iterating.done():
            self.iterating = asyncio.create_task(self.iterate())
        try:
            yield Reply(content=self.lines(request))
        finally:
            self.waiting = [other for other in self.waiting if other is not request]
            self.running = [other for other in self.running if other is not request]

    @asynccontextmanager
    async def get(self, url: str) -> AsyncIterator["Reply"]:
        lines = [f"{name} {value}" for name, value in self.counters.items() if self.drafted]
        yield Reply(page="\n".join(lines))

    async def lines(self, request: Request) -> AsyncIterator[bytes]:
        if self.error:
            yield b"data: " + orjson.dumps({"error": self.error}) + b"\n"
        while request.tokens < request.max_tokens or not request.events.empty():
            yield b"data: " + orjson.dumps(await request.events.get()) + b"\n"

    async def iterate(self) -> None:
        while self.waiting or self.running:
            prompts = self.waiting
            decodes = self.running if self.mixes or not prompts else []
            self.waiting = []
            work = BatchWork(
                sum(each.prompt_tokens for each in prompts) + len(decodes) * (1 + self.drafted),
                sum(each.prompt_tokens + each.tokens for each in decodes),
                sum(chunk_work(each.prompt_tokens, 0) for each in prompts),
                self.drafted if decodes else 0,
            )
            await asyncio.sleep(MODEL.seconds(work) * self.slowdown(now_s()))
            for each in prompts:
                self.send_tokens(each, 1)
            for each in decodes:
                self.send_tokens(each, 1 + self.accepted)
                self.counters[DRAFTED] += self.drafted
                self.counters[ACCEPTED] += self.accepted
            self.running = [each for each in [*self.running, *prompts] if each.tokens < each.max_tokens]

    def send_tokens(self, request: Request, tokens: int) -> None:
        request.tokens = min(request.tokens + tokens, request.max_tokens)
        usage = {"prompt_tokens": request.prompt_tokens, "completion_tokens": request.tokens}
        request.events.put_nowait({"choices": [{"text": "a"}], "usage": usage})


@dataclass
class Reply:
    page: str = ""
    content: AsyncIterator[bytes] | None = None
    status: int = 200

    async def text(self) -> str:
        return self.page


def connected(virtual: VirtualEngine) -> MeasuredEngine:
    session = cast(aiohttp.ClientSession, virtual)
    return MeasuredEngine(session, "http://virtual", "virtual", 4096, takes_ids=True, takes_extensions=True)
