"""Requests to an OpenAI server, open loop or closed loop, and their outcomes at the client.

Prompts are text for a model whose tokens are bytes, so that all engines count the same tokens; only OpenAI's
fields are used. Tokens of answers are counted by their usage, because engines merge tokens into events.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from string import ascii_lowercase
from time import perf_counter
from typing import NamedTuple

import aiohttp
import orjson


class Kind(NamedTuple):
    """A kind of request: ranges of prompt and answer tokens, and its share of all requests."""

    prompt_tokens: tuple[int, int]
    answer_tokens: tuple[int, int]
    share: float


KINDS = {"chat": Kind((40, 160), (30, 60), 0.8), "summary": Kind((1400, 2200), (8, 16), 0.2)}


class Planned(NamedTuple):
    """A request, and its time from the start."""

    at_s: float
    tier: str
    prompt: str
    max_tokens: int


@dataclass(slots=True)
class MeasuredOutcome:
    """The outcome of a request. status: 0 for no response. times_s: of events, from its planned time."""

    tier: str
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    tokens: int = 0
    times_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.times_s[0]

    @property
    def tpot_s(self) -> float:
        """Mean gap between tokens; None without gaps."""
        return (self.times_s[-1] - self.times_s[0]) / max(self.tokens - 1, 1)


def arrivals(rate_rps: float, seconds: float, seed: int) -> list[Planned]:
    """Return requests with Poisson arrivals, as from many clients."""
    random, at_s, planned = Random(seed), 0.0, []
    while (at_s := at_s + random.expovariate(rate_rps)) < seconds:
        tier = random.choices(list(KINDS), [kind.share for kind in KINDS.values()])[0]
        planned.append(one(random, tier, at_s))
    return planned


def one(random: Random, tier: str, at_s: float = 0.0) -> Planned:
    kind = KINDS[tier]
    letters = random.choices(ascii_lowercase + "  ", k=random.randint(*kind.prompt_tokens))
    return Planned(at_s, tier, "".join(letters), random.randint(*kind.answer_tokens))


@asynccontextmanager
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as opened:
        yield opened


async def open_loop(url: str, model: str, planned: Sequence[Planned]) -> list[MeasuredOutcome]:
    """Send every request at its time, regardless of others, and return the outcomes."""
    async with session() as http:
        began_s = perf_counter()

        async def due(request: Planned) -> MeasuredOutcome:
            await asyncio.sleep(began_s + request.at_s - perf_counter())
            return await send(http, url, model, request, began_s + request.at_s)

        return list(await asyncio.gather(*map(due, planned)))


async def closed_loop(url: str, model: str, clients: int, seconds: float) -> float:
    """Return the requests per second that `clients` clients get answered, each sending one at a time."""
    done = 0
    async with session() as http:
        until_s = perf_counter() + seconds

        async def client(seed: int) -> None:
            nonlocal done
            random = Random(seed)
            while perf_counter() < until_s:
                tier = random.choices(list(KINDS), [kind.share for kind in KINDS.values()])[0]
                outcome = await send(http, url, model, one(random, tier), perf_counter())
                done += outcome.status == 200 and perf_counter() < until_s

        await asyncio.gather(*map(client, range(clients)))
    return done / seconds


async def send(
    http: aiohttp.ClientSession,
    url: str,
    model: str,
    request: Planned,
    due_s: float,
    *,
    into: MeasuredOutcome | None = None,
    own: Mapping[str, str] | None = None,
) -> MeasuredOutcome:
    """Send a request and read its answer. into: updated during the answer. own: additional headers."""
    outcome = into or MeasuredOutcome(request.tier)
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"x-penstock-tier": request.tier, **(own or {})}
    try:
        async with http.post(f"{url}/v1/completions", json=body, headers=headers) as reply:
            outcome.status, outcome.headers = reply.status, reply.headers
            if reply.status == 200:
                async for line in reply.content:
                    if line.startswith(b"data: {"):
                        take(outcome, orjson.loads(line[6:]), perf_counter() - due_s)
    except (aiohttp.ClientError, TimeoutError):
        outcome.status = 0
    return outcome


def take(outcome: MeasuredOutcome, chunk: dict[str, object], at_s: float) -> None:
    if chunk.get("choices"):
        outcome.times_s.append(at_s)
    usage = chunk.get("usage")
    counted = usage["completion_tokens"] if isinstance(usage, dict) else len(outcome.times_s)
    outcome.tokens = counted
