"""Streams as engines really write them: counted, merged, in text alone, broken."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from penstock_profiler import EngineError, KvCache, connected
from penstock_profiler.engine import Drafts, Stream

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CARD = {"data": [{"id": "tiny", "max_model_len": 4096}]}


@asynccontextmanager
async def serving(completions: Handler, card: Any = CARD, metrics: str = "") -> AsyncIterator[str]:
    async def models(request: web.Request) -> web.Response:
        return web.json_response(card)

    async def counters(request: web.Request) -> web.Response:
        return web.Response(text=metrics)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_get("/metrics", counters)
    app.router.add_post("/v1/completions", completions)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


def streaming(*events: dict[str, Any]) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        for event in events:
            await reply.write(b"data: " + orjson.dumps(event) + b"\n\n")
        await reply.write(b"data: [DONE]\n\n")
        return reply

    return answer


def text(tokens: int | None = None) -> dict[str, Any]:
    chunk: dict[str, Any] = {"choices": [{"text": "a"}]}
    return chunk if tokens is None else chunk | {"usage": {"prompt_tokens": 7, "completion_tokens": tokens}}


async def followed(url: str) -> Stream:
    async with connected(url) as engine:
        stream = Stream(0.0, 4)
        await engine.follow(stream, 8, Random(0))
        return stream


async def test_tokens_are_counted_by_usage_where_chunks_merge() -> None:
    async with serving(
        streaming(text(1), text(4), {"choices": [], "usage": {"completion_tokens": 5}})
    ) as url:
        stream = await followed(url)
    assert [seen.tokens for seen in stream.seen] == [1, 4]
    assert stream.prompt_tokens == 7


async def test_a_chunk_is_a_token_where_the_engine_does_not_count() -> None:
    async with serving(streaming(text(), text(), text())) as url:
        stream = await followed(url)
    assert [seen.tokens for seen in stream.seen] == [1, 2, 3]
    assert stream.prompt_tokens == 4


async def test_an_engine_that_takes_text_alone_gets_text() -> None:
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append((await request.json())["prompt"])
        if not isinstance(asked[-1], str):
            return web.json_response({"error": {"message": "prompt must be a string"}}, status=422)
        return await streaming(text(1))(request)

    async with serving(answer) as url:
        await followed(url)
    assert isinstance(asked[0], list)
    assert isinstance(asked[-1], str)
    assert len(asked[-1].split()) == 4


async def test_an_engine_that_refuses_fields_beyond_openais_does_without() -> None:
    asked: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        if "ignore_eos" in asked[-1]:
            return web.json_response({"detail": "Unexpected fields in the request"}, status=422)
        return await streaming(text(1))(request)

    async with serving(answer) as url:
        await followed(url)
    assert isinstance(asked[-1]["prompt"], list)
    assert asked[-1]["stream_options"] == {"include_usage": True}


async def test_an_engines_error_is_told_in_one_line() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=500, text="CUDA\nout of memory")

    async with serving(answer) as url:
        with pytest.raises(EngineError, match="answers 500: CUDA out of memory"):
            await followed(url)


async def test_an_error_in_the_stream_is_no_token() -> None:
    async with serving(streaming(text(1), {"error": {"message": "engine died"}})) as url:
        with pytest.raises(EngineError, match="failed in the middle of a stream"):
            await followed(url)


@pytest.mark.parametrize("card", [{}, {"data": []}, {"data": [{}]}, []])
async def test_a_server_without_a_model_is_no_engine(card: Any) -> None:
    async with serving(streaming(text(1)), card=card) as url:
        with pytest.raises(EngineError, match="names no model; is it an engine"):
            await followed(url)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x"])
async def test_what_is_no_url_is_said_to_be_none(url: str) -> None:
    with pytest.raises(EngineError, match="is no URL; write for example"):
        await followed(url)


async def test_drafts_are_read_from_vllms_counters() -> None:
    metrics = "\n".join(
        (
            "# TYPE vllm:spec_decode_num_draft_tokens_total counter",
            'vllm:spec_decode_num_draft_tokens_total{model_name="tiny"} 120.0',
            'vllm:spec_decode_num_accepted_tokens_total{model_name="tiny"} 80.0',
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 50.0',
        )
    )
    async with serving(streaming(text(1)), metrics=metrics) as url, connected(url) as engine:
        assert await engine.drafts() == Drafts(120, 80)


async def test_an_engine_without_counters_drafts_nothing() -> None:
    async with serving(streaming(text(1))) as url, connected(url) as engine:
        assert await engine.drafts() == Drafts()


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        (
            'vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="512"} 1.0',
            KvCache(512, 16),
        ),
        ('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0', None),
        ("", None),
    ],
    ids=["told", "not yet known", "no metrics"],
)
async def test_the_kv_cache_is_as_the_engine_tells_it(metrics: str, told: KvCache | None) -> None:
    async with serving(streaming(text(1)), metrics=metrics) as url, connected(url) as engine:
        assert await engine.kv_cache() == told
