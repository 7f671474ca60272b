"""An engine with a prefix cache behind OpenAI's API: what answers and metrics say of it."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies import build
from prometheus_client.parser import text_string_to_metric_families

RealTime = Callable[..., AbstractAsyncContextManager[Any]]
Http = httpx2.AsyncClient
WORDS = "abcdefgh" * 24  # 48 tokens: three blocks


async def usage(http: Http, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": WORDS, "max_tokens": 2, "ignore_eos": True, **fields}
    reply = await http.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    reported: dict[str, Any] = reply.json()["usage"]
    return reported


async def cached(http: Http, **fields: Any) -> int:
    tokens: int = (await usage(http, **fields))["prompt_tokens_details"]["cached_tokens"]
    return tokens


async def counters(http: Http) -> dict[str, float]:
    families = text_string_to_metric_families((await http.get("/metrics")).text)
    return {sample.name: sample.value for family in families for sample in family.samples}


async def test_a_longer_prompt_finds_the_blocks_of_the_previous_one(real_time: RealTime) -> None:
    async with real_time(prefix_caching=True) as engine, Http(base_url=engine.url) as http:
        assert await cached(http) == 0
        assert await cached(http, prompt=WORDS + "more") == 48
        assert await cached(http) == 32, "the last token is computed, and with it its block"
        assert await cached(http, prompt="other" + WORDS) == 0
        found = await counters(http)
    assert found["vllm:prefix_cache_queries_total"] == 48 + 49 + 48 + 50
    assert found["vllm:prefix_cache_hits_total"] == 48 + 32


async def test_streams_and_chats_report_cached_tokens(real_time: RealTime) -> None:
    first = [{"role": "user", "content": WORDS}]
    turns = [*first, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "go on"}]
    async with real_time(prefix_caching=True) as engine:
        for messages, tokens in ((first, 0), (turns, 48)):
            stream = await engine.client.chat.completions.create(
                model="tiny",
                messages=messages,
                max_tokens=2,
                stream=True,
                stream_options={"include_usage": True},
            )
            *_, last = [chunk async for chunk in stream]
            assert last.usage.prompt_tokens_details.cached_tokens == tokens


async def test_text_and_its_token_ids_are_the_same_prompt(real_time: RealTime) -> None:
    async with real_time(prefix_caching=True) as engine, Http(base_url=engine.url) as http:
        ids = (await http.post("/tokenize", json={"prompt": WORDS + "rest"})).json()["tokens"]
        assert await cached(http) == 0
        assert await cached(http, prompt=ids) == 48


async def test_different_salts_share_no_blocks(real_time: RealTime) -> None:
    async with real_time(prefix_caching=True) as engine, Http(base_url=engine.url) as http:
        assert await cached(http, cache_salt="a") == 0
        assert await cached(http, cache_salt="b") == 0
        assert await cached(http) == 0
        assert await cached(http, cache_salt="a") == 32


@pytest.mark.parametrize("salt", ["", 7, "x" * 5000], ids=["empty", "no string", "long"])
async def test_an_invalid_salt_is_refused(real_time: RealTime, salt: object) -> None:
    async with real_time(prefix_caching=True) as engine, Http(base_url=engine.url) as http:
        reply = await http.post("/v1/completions", json={"model": "tiny", "prompt": "x", "cache_salt": salt})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "cache_salt")


async def test_the_cache_is_emptied_unless_a_request_holds_blocks(real_time: RealTime) -> None:
    async with real_time(prefix_caching=True) as engine, Http(base_url=engine.url) as http:
        assert await cached(http) == 0
        assert await cached(http) == 32
        body = {"model": "tiny", "prompt": WORDS, "max_tokens": 900, "ignore_eos": True, "stream": True}
        async with http.stream("POST", "/v1/completions", json=body):
            await engine.until(lambda state: state.running_count == 1)
            assert (await http.post("/reset_prefix_cache")).json() == {"success": False}
        await engine.until(lambda state: state.running_count == 0)
        assert (await http.post("/reset_prefix_cache")).json() == {"success": True}
        assert await cached(http) == 0


async def test_without_a_prefix_cache_none_is_reported(real_time: RealTime) -> None:
    async with real_time() as engine, Http(base_url=engine.url) as http:
        await usage(http)
        assert "prompt_tokens_details" not in await usage(http, cache_salt="a")
        assert (await http.post("/reset_prefix_cache")).json() == {"success": True}
        assert (await counters(http))["vllm:prefix_cache_queries_total"] == 0


class Pausing:
    """vLLM's policy, which returns empty steps while it is paused."""

    def __init__(self) -> None:
        self.paused, self._policy = False, build("vllm")

    def start(self) -> Any:
        return self._policy.start()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> Sequence[Verdict]:
        raise NotImplementedError

    def step(self, view: ReplicaView, memory: Any) -> tuple[Step, Any]:
        return (Step({}), memory) if self.paused else self._policy.step(view, memory)


@pytest.mark.parametrize(("counts", "held_blocks"), [(True, 2), (False, 0)])
async def test_a_request_admitted_for_its_prefix_holds_it_while_it_waits(
    real_time: RealTime, counts: bool, held_blocks: int
) -> None:
    policy, other = Pausing(), {"model": "tiny", "prompt": "x", "max_tokens": 900, "ignore_eos": True}
    async with (
        real_time(prefix_caching=True, policy=policy) as engine,
        Http(base_url=engine.url) as http,
        http.stream("POST", "/v1/completions", json={**other, "stream": True}),
    ):
        await cached(http)
        policy.paused = True
        before = engine.loop.state.free_blocks
        body = {"model": "tiny", "prompt": WORDS, "vllm_xargs": {"penstock_counts_on_cache": counts}}
        waits = asyncio.create_task(http.post("/v1/completions", json=body))
        await engine.until(lambda state: state.waiting_count == 1)
        assert before - engine.loop.state.free_blocks == held_blocks
        policy.paused = False
        assert (await waits).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}
