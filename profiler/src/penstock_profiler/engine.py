"""Client of the engine to measure: completions streamed over its OpenAI API, and vLLM's draft token counters.

Prompts are random token ids, so that no prefix cache has them and their length is exact; if an engine accepts
text only, they are words, and its usage reports their length. Answers have the requested length
(`ignore_eos`), unless the engine rejects fields that are not OpenAI's.
"""

import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from math import nan
from random import Random
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import orjson
from penstock_proto.engine_calls import DECIDED

LOWEST_ID, HIGHEST_ID = 10, 250
"""Range of token ids that are ordinary tokens in every vocabulary."""

ANSWER_TIMEOUT_S = 10.0
"""Timeout of requests that need no computation."""

DATA, DONE = b"data:", b"[DONE]"

DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


class EngineError(Exception):
    """The engine cannot be measured. The message is one line for the user."""


class TokenArrival(NamedTuple):
    """The arrival of tokens: time (`perf_counter`), and the number of tokens received by then."""

    at_s: float
    tokens: int


class Drafts(NamedTuple):
    """Draft tokens and accepted draft tokens since the engine's start; zero if it does not report them."""

    drafted: int = 0
    accepted: int = 0


class EngineKvCache(NamedTuple):
    """The engine's KV cache: number of blocks, and tokens per block."""

    blocks: int
    block_tokens: int


@dataclass(slots=True)
class CompletionStream:
    """The received part of one answer.

    prompt_tokens: as the engine reports them; before that, as requested. sent_s: `perf_counter`.
    """

    prompt_tokens: int
    sent_s: float = nan
    arrivals: list[TokenArrival] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """A reachable engine.

    takes_ids: whether prompts may be token ids.
    takes_extensions: whether bodies may have fields beyond OpenAI's.
    context_tokens: context of its model; 0 if it does not report it.
    """

    session: aiohttp.ClientSession
    url: str
    model: str
    context_tokens: int
    takes_ids: bool
    takes_extensions: bool

    async def follow(self, stream: CompletionStream, max_tokens: int, random: Random) -> None:
        """Request an answer and record the arrivals of its tokens. Raises EngineError."""
        body = self._body(stream.prompt_tokens, max_tokens, random)
        stream.sent_s = perf_counter()
        try:
            async with self.session.post(f"{self.url}/v1/completions", data=body, headers=JSON) as reply:
                if reply.status != 200:
                    raise EngineError(f"{self.url} answers {reply.status}: {_line(await reply.text())}")
                async for line in reply.content:
                    if line.startswith(DATA) and DONE not in line:
                        _take(stream, orjson.loads(line[len(DATA) :]))
        except (aiohttp.ClientError, orjson.JSONDecodeError) as error:
            raise EngineError(f"{self.url}: the stream failed: {type(error).__name__}: {error}") from error

    async def drafts(self) -> Drafts:
        """Read its counters of draft tokens."""
        text = await self._metrics()
        return Drafts(_counter(text, DRAFTED), _counter(text, ACCEPTED))

    async def kv_cache(self) -> EngineKvCache | None:
        """Read its KV cache from vLLM's metrics; None if it does not report it."""
        found = CACHE.search(await self._metrics())
        labels = dict(LABEL.findall(found[1])) if found else {}
        try:
            return EngineKvCache(int(labels["num_gpu_blocks"]), int(labels["block_size"]))
        except (KeyError, ValueError):
            return None

    async def _metrics(self) -> str:
        try:
            async with self.session.get(f"{self.url}/metrics") as reply:
                return await reply.text() if reply.status == 200 else ""
        except aiohttp.ClientError:
            return ""

    def _body(self, prompt_tokens: int, max_tokens: int, random: Random) -> bytes:
        ids = [random.randint(LOWEST_ID, HIGHEST_ID) for _ in range(prompt_tokens)]
        body = {
            "model": self.model,
            "prompt": ids if self.takes_ids else " ".join(map(str, ids)),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return orjson.dumps({**body, **EXTENSION_FIELDS} if self.takes_extensions else body)


JSON = {"content-type": "application/json"}

EXTENSION_FIELDS = {
    "ignore_eos": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
"""Fields of vLLM that other engines support too."""


@asynccontextmanager
async def connected(
    url: str,
    headers: Mapping[str, str] | None = None,
    tls: Callable[[], ssl.SSLContext] | None = None,
) -> AsyncIterator[MeasuredEngine]:
    """Connect to the engine at this URL while the block runs. Raises EngineError if none answers.

    headers: sent with every request, such as an API key.
    tls: returns the TLS context of https URLs; None for the authorities that this machine trusts.
    """
    base = url.rstrip("/").removesuffix("/v1")
    if urlsplit(base).scheme not in {"http", "https"} or not urlsplit(base).netloc:
        raise EngineError(f'"{url}" is not a URL; write for example http://127.0.0.1:8000')
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0, ssl=True if tls is None else tls())
    sent = {DECIDED: "1", **(headers or {})}  # an engine behind a gateway does not ask its sidecar
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=sent) as session:
        model, context_tokens = await _first_model(session, base)
        for variant in product((True, False), repeat=2):
            engine = MeasuredEngine(session, base, model, context_tokens, *variant)
            if await _accepts(engine):
                break
        yield engine  # if it accepts no variant, the first probe raises the reason


async def _first_model(session: aiohttp.ClientSession, url: str) -> tuple[str, int]:
    """Return the first model that it serves, and the model's context."""
    try:
        async with session.get(
            f"{url}/v1/models", timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        ) as reply:
            if reply.status != 200:
                raise EngineError(f"{url} answers {reply.status} to /v1/models; is it an engine?")
            card = orjson.loads(await reply.read())["data"][0]
            return str(card["id"]), int(card.get("max_model_len") or 0)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise EngineError(f"{url}: no engine answers there ({str(error) or 'no answer in time'})") from error
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(f"{url}/v1/models lists no model; is it an engine?") from error


async def _accepts(engine: MeasuredEngine) -> bool:
    try:
        await engine.follow(CompletionStream(4), 1, Random())
    except EngineError:
        return False
    return True


def _take(stream: CompletionStream, chunk: dict[str, Any]) -> None:
    """Record a chunk of the answer. Without usage in the stream, a chunk counts as one token."""
    if "error" in chunk:
        raise EngineError(f"the engine failed in the middle of a stream: {_line(str(chunk['error']))}")
    usage = chunk.get("usage") or {}
    stream.prompt_tokens = usage.get("prompt_tokens") or stream.prompt_tokens
    before = stream.arrivals[-1].tokens if stream.arrivals else 0
    tokens = usage.get("completion_tokens") or before + bool(chunk.get("choices"))
    if tokens > before and chunk.get("choices"):
        stream.arrivals.append(TokenArrival(perf_counter(), tokens))


def _counter(text: str, name: str) -> int:
    return sum(int(float(line.rpartition(" ")[2])) for line in text.splitlines() if line.startswith(name))


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
