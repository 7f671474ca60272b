"""Streams as engines really write them: counted, merged, in text alone, broken."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from penstock_profiler import EngineError, EngineKvCache, MeasuredEngine, connected
from penstock_profiler.engine import DRAFTED, CompletionStream, Drafts
from penstock_proto.engine_calls import DECIDED

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CARD = {"data": [{"id": "tiny", "max_model_len": 4096}]}


@web.middleware
async def asking_a_sidecar(request: web.Request, handler: Handler) -> web.StreamResponse:
    """An engine behind a gateway asks its sidecar, which is not there while the engine is measured."""
    return await handler(request) if DECIDED in request.headers else web.Response(status=503)


@asynccontextmanager
async def serving(completions: Handler, card: Any = CARD, metrics: str = "") -> AsyncIterator[str]:
    async def models(request: web.Request) -> web.Response:
        return web.json_response(card)

    async def counters(request: web.Request) -> web.Response:
        return web.Response(text=metrics)

    app = web.Application(middlewares=[asking_a_sidecar])
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


async def followed(url: str) -> CompletionStream:
    async with connected(url) as engine:
        stream = CompletionStream(4)
        await engine.follow(stream, 8, Random(0))
        return stream


async def test_tokens_of_merged_chunks_are_counted_by_usage() -> None:
    async with serving(
        streaming(text(1), text(4), {"choices": [], "usage": {"completion_tokens": 5}})
    ) as url:
        stream = await followed(url)
    assert [seen.tokens for seen in stream.arrivals] == [1, 4]
    assert stream.prompt_tokens == 7


async def test_without_usage_each_chunk_is_a_token() -> None:
    async with serving(streaming(text(), text(), text())) as url:
        stream = await followed(url)
    assert [seen.tokens for seen in stream.arrivals] == [1, 2, 3]
    assert stream.prompt_tokens == 4


async def test_a_repeated_usage_count_adds_no_token() -> None:
    async with serving(streaming(text(1), text(1), text(2))) as url:
        stream = await followed(url)
    assert [seen.tokens for seen in stream.arrivals] == [1, 2]


async def test_a_request_is_a_stream_of_exactly_the_given_tokens() -> None:
    requested: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        requested.append(await request.json())
        return await streaming(text(1))(request)

    async with serving(answer) as url, connected(url) as engine:
        assert (engine.model, engine.context_tokens) == ("tiny", 4096)
        assert (engine.takes_ids, engine.takes_extensions) == (True, True)
        await engine.follow(CompletionStream(40), 8, Random(0))
    tried, body = requested
    assert (len(tried["prompt"]), tried["max_tokens"]) == (4, 1), "to see what it understands costs little"
    assert len(body.pop("prompt")) == 40
    assert body == {
        "model": "tiny",
        "max_tokens": 8,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "ignore_eos": True,
    }


async def test_an_engine_gets_more_connections_than_a_clients_default() -> None:
    together = asyncio.Barrier(101)

    async def answer(request: web.Request) -> web.StreamResponse:
        if (await request.json())["max_tokens"] > 1:
            await together.wait()
        return await streaming(text(1))(request)

    async with serving(answer) as url, connected(url) as engine:
        streams = [CompletionStream(1) for _ in range(together.parties)]
        await asyncio.gather(*(engine.follow(stream, 8, Random(0)) for stream in streams))
    assert all(stream.arrivals for stream in streams)


async def test_an_engine_that_refuses_both_gets_text_and_openais_fields() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not isinstance(body["prompt"], str) or "ignore_eos" in body:
            return web.json_response({"detail": "no"}, status=422)
        return await streaming(text(1))(request)

    async with serving(answer) as url, connected(url) as engine:
        assert (engine.takes_ids, engine.takes_extensions) == (False, False)


async def test_an_engine_that_accepts_only_text_gets_text() -> None:
    requested: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        requested.append((await request.json())["prompt"])
        if not isinstance(requested[-1], str):
            return web.json_response({"error": {"message": "prompt must be a string"}}, status=422)
        return await streaming(text(1))(request)

    async with serving(answer) as url:
        await followed(url)
    assert isinstance(requested[0], list)
    assert isinstance(requested[-1], str)
    assert len(requested[-1].split()) == 4


async def test_an_engine_that_refuses_fields_beyond_openais_gets_none() -> None:
    requested: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        requested.append(await request.json())
        if "ignore_eos" in requested[-1]:
            return web.json_response({"detail": "Unexpected fields in the request"}, status=422)
        return await streaming(text(1))(request)

    async with serving(answer) as url:
        await followed(url)
    assert isinstance(requested[-1]["prompt"], list)
    assert requested[-1]["stream_options"] == {"include_usage": True}


async def test_an_engines_error_is_one_line() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=500, text="CUDA\nout of memory")

    async with serving(answer) as url:
        with pytest.raises(EngineError, match="answers 500: CUDA out of memory"):
            await followed(url)


async def test_an_error_in_the_stream_is_not_a_token() -> None:
    async with serving(streaming(text(1), {"error": {"message": "engine died"}})) as url:
        with pytest.raises(EngineError, match="failed in the middle of a stream"):
            await followed(url)


async def test_an_error_is_shortened() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=500, text="x" * 1000)

    async with serving(answer) as url:
        with pytest.raises(EngineError) as raised:
            await followed(url)
    assert str(raised.value) == f"{url} answers 500: {'x' * 300}"


@pytest.mark.parametrize("line", [b"data: {broken\n\n", b"data: \n\n"])
async def test_a_stream_that_is_not_json_ends(line: bytes) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=line)

    async with serving(answer) as url:
        with pytest.raises(EngineError, match="the stream failed: JSONDecodeError"):
            await followed(url)


async def test_a_lost_engine_aborts_the_profile_without_a_reading() -> None:
    async with serving(streaming(text(1)), metrics=f"{DRAFTED} 7") as url, connected(url) as engine:
        assert (await engine.drafts()).drafted == 7
        gone = replace(engine, url="http://127.0.0.1:9")
        assert await gone.drafts() == Drafts(0, 0)
        with pytest.raises(EngineError, match="the stream failed: Client"):
            await gone.follow(CompletionStream(4), 8, Random(0))


async def test_a_closed_port_is_not_an_engine() -> None:
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9: no engine answers there \(.+\)"):
        await followed("http://127.0.0.1:9")


async def test_a_server_that_answers_too_late_is_not_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_profiler.engine.ANSWER_TIMEOUT_S", 0.01)
    requested = asyncio.Event()

    async def models(request: web.Request) -> web.Response:
        await requested.wait()
        return web.json_response(CARD)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    async with TestServer(app) as server:
        with pytest.raises(EngineError, match=r"no engine answers there \(no answer in time\)"):
            await followed(str(server.make_url("")))
        requested.set()


async def test_a_server_without_a_models_page_is_not_an_engine() -> None:
    async with TestServer(web.Application()) as server:
        with pytest.raises(EngineError, match="answers 404 to /v1/models; is it an engine"):
            await followed(str(server.make_url("/v1")))


async def test_a_context_length_that_is_not_reported_is_unknown() -> None:
    async with serving(streaming(text(1)), card={"data": [{"id": "tiny"}]}) as url, connected(url) as engine:
        assert engine.context_tokens == 0


@pytest.mark.parametrize("card", [{}, {"data": []}, {"data": [{}]}, []])
async def test_a_server_with_an_empty_list_of_models_is_not_an_engine(card: Any) -> None:
    async with serving(streaming(text(1)), card=card) as url:
        with pytest.raises(EngineError, match="lists no model; is it an engine"):
            await followed(url)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x", "http://", "https:///v1"])
async def test_an_invalid_url_is_reported(url: str) -> None:
    with pytest.raises(EngineError, match="is not a URL; write for example"):
        await followed(url)


async def test_drafts_are_read_from_vllms_counters() -> None:
    metrics = "\n".join(
        (
            "# TYPE vllm:spec_decode_num_draft_tokens_total counter",
            'vllm:spec_decode_num_draft_tokens_total{model_name="tiny",engine="0"} 100.0',
            'vllm:spec_decode_num_draft_tokens_total{model_name="not tiny",engine="1"} 20.0',
            'vllm:spec_decode_num_accepted_tokens_total{model_name="tiny"} 80.0',
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 50.0',
        )
    )
    async with serving(streaming(text(1)), metrics=metrics) as url, connected(url) as engine:
        assert await engine.drafts() == Drafts(120, 80)


async def test_an_engine_without_counters_has_no_drafts() -> None:
    async with serving(streaming(text(1))) as url, connected(url) as engine:
        assert await engine.drafts() == Drafts(0, 0)


async def test_an_error_page_has_no_counters() -> None:
    async def broken(request: web.Request) -> web.Response:
        return web.Response(text=f"{DRAFTED} 7", status=500)

    app = web.Application()
    app.router.add_get("/metrics", broken)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        engine = MeasuredEngine(session, str(server.make_url("")).rstrip("/"), "tiny", 0, True, True)
        assert await engine.drafts() == Drafts(0, 0)


@pytest.mark.parametrize(
    ("metrics", "reported"),
    [
        (
            'vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="512"} 1.0',
            EngineKvCache(512, 16),
        ),
        ('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0', None),
        ("", None),
    ],
    ids=["known", "not yet known", "no metrics"],
)
async def test_the_kv_cache_size_is_read_from_the_engine(
    metrics: str, reported: EngineKvCache | None
) -> None:
    async with serving(streaming(text(1)), metrics=metrics) as url, connected(url) as engine:
        assert await engine.kv_cache() == reported
