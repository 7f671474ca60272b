"""The engine's HTTP surface, through real sockets and the official client."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

RealTime = Callable[..., AbstractAsyncContextManager[Any]]
HI: list[Any] = [{"role": "user", "content": "hello there"}]
NO_EOS: dict[str, Any] = {"ignore_eos": True}


async def test_a_chat_is_answered_with_its_usage(real_time: RealTime) -> None:
    async with real_time() as engine:
        reply = await engine.client.chat.completions.create(
            model="tiny", messages=HI, max_tokens=7, extra_body=NO_EOS
        )
    assert reply.usage.model_dump(include={"prompt_tokens", "completion_tokens", "total_tokens"}) == {
        "prompt_tokens": 7,  # 11 bytes are 3 tokens, the message 4 more
        "completion_tokens": 7,
        "total_tokens": 14,
    }
    assert len(reply.choices[0].message.content.encode()) == 7 * 4
    assert (reply.choices[0].finish_reason, reply.object, reply.model) == (
        "length",
        "chat.completion",
        "tiny",
    )


async def test_a_streamed_chat_has_role_words_finish_reason_and_usage(real_time: RealTime) -> None:
    async with real_time() as engine:
        stream = await engine.client.chat.completions.create(
            model="tiny",
            messages=HI,
            max_completion_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=NO_EOS,
        )
        chunks = [chunk async for chunk in stream]
    *spoken, last = chunks
    assert spoken[0].choices[0].delta.role == "assistant"
    output = "".join(chunk.choices[0].delta.content for chunk in spoken)
    assert len(output.split()) == 5
    assert [chunk.choices[0].finish_reason for chunk in spoken][-1] == "length"
    assert {chunk.choices[0].finish_reason for chunk in spoken[:-1]} == {None}
    assert (last.choices, last.usage.completion_tokens) == ([], 5)
    assert {chunk.id for chunk in chunks} == {last.id}


async def test_each_word_is_one_token_in_streams_and_whole_answers(real_time: RealTime) -> None:
    async with real_time() as engine:
        stream = await engine.client.completions.create(
            model="tiny", prompt=[1, 2, 3], max_tokens=9, stream=True, extra_body=NO_EOS
        )
        text = "".join([chunk.choices[0].text async for chunk in stream])
        whole = await engine.client.completions.create(
            model="tiny", prompt="x" * 9, max_tokens=9, extra_body=NO_EOS
        )
    assert len(text) == len(whole.choices[0].text) == 36
    assert whole.usage.prompt_tokens == 3


async def test_n_may_be_one(real_time: RealTime) -> None:
    async with real_time() as engine:
        reply = await engine.client.completions.create(model="tiny", prompt="hi", max_tokens=1, n=1)
    assert len(reply.choices) == 1


async def test_a_stream_may_have_a_single_token(real_time: RealTime) -> None:
    async with real_time() as engine, httpx2.AsyncClient(base_url=engine.url) as http:
        body = {"prompt": "hi", "max_tokens": 1, "stream": True, "ignore_eos": True}
        reply = await http.post("/v1/completions", json=body)
    events = reply.text.split("\n\n")
    assert len(events) == 3
    assert events[1:] == ["data: [DONE]", ""]
    assert reply.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"vllm_xargs": {"simulated_output_tokens": 3}}, 3),
        ({"vllm_xargs": {"simulated_output_tokens": 300}}, 20),
        ({"ignore_eos": True}, 20),
        ({"min_tokens": 20}, 20),
    ],
    ids=["given", "given past its limit", "no end", "at least"],
)
async def test_an_answers_length_is_given_or_drawn(
    real_time: RealTime, body: dict[str, Any], tokens: int
) -> None:
    async with real_time() as engine:
        reply = await engine.client.completions.create(
            model="tiny", prompt="hi", max_tokens=20, extra_body=body
        )
    assert reply.usage.completion_tokens == tokens
    assert reply.choices[0].finish_reason == ("length" if tokens == 20 else "stop")


THOUGHT: dict[str, Any] = {"vllm_xargs": {"simulated_output_tokens": 9, "simulated_thinking_tokens": 4}}


async def test_a_chat_separates_thinking_from_its_answer(real_time: RealTime) -> None:
    """As vLLM's reasoning parsers do; streamed or not, it is the same words."""
    async with real_time() as engine:
        requested: dict[str, Any] = {"model": "tiny", "messages": HI, "max_tokens": 20, "extra_body": THOUGHT}
        stream = await engine.client.chat.completions.create(stream=True, **requested)
        deltas = [chunk.choices[0].delta async for chunk in stream]
        whole = await engine.client.chat.completions.create(**requested)
    thought = [getattr(delta, "reasoning_content", None) for delta in deltas]
    output = [delta.content for delta in deltas]
    assert len("".join(filter(None, thought)).split()) == 4
    assert len("".join(filter(None, output)).split()) == 5
    assert not any(thought[[bool(one) for one in output].index(True) + 1 :]), "nothing is thought after it"
    message = whole.choices[0].message
    assert (len(message.reasoning_content.split()), len(message.content.split())) == (4, 5)
    assert whole.usage.completion_tokens == 9


async def test_an_answer_that_was_cut_off_while_thinking_has_no_content(real_time: RealTime) -> None:
    async with real_time() as engine:
        reply = await engine.client.chat.completions.create(
            model="tiny", messages=HI, max_tokens=3, extra_body=THOUGHT
        )
    message = reply.choices[0].message
    assert (len(message.reasoning_content.split()), message.content) == (3, None)


async def test_a_completion_has_the_raw_text_with_thinking(real_time: RealTime) -> None:
    async with real_time() as engine:
        reply = await engine.client.completions.create(
            model="tiny", prompt="hi", max_tokens=20, extra_body=THOUGHT
        )
    assert len(reply.choices[0].text.split()) == 9


async def test_tokenize_counts_the_tokens_of_a_completion(real_time: RealTime) -> None:
    async with real_time() as engine, httpx2.AsyncClient(base_url=engine.url) as http:
        text = (await http.post("/tokenize", json={"prompt": "grüße"})).json()
        chat = (await http.post("/tokenize", json={"model": "tiny", "messages": HI})).json()
    assert (text["count"], len(text["tokens"]), text["max_model_len"]) == (2, 2, 1000)
    assert chat["count"] == 7


async def test_models_health_and_version_are_served(real_time: RealTime) -> None:
    async with real_time() as engine, httpx2.AsyncClient(base_url=engine.url) as http:
        (model,) = (await http.get("/v1/models")).json()["data"]
        assert (model["id"], model["max_model_len"]) == ("tiny", 1000)
        assert (await http.get("/health")).status_code == 200
        assert "version" in (await http.get("/version")).json()


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ERRORS: dict[str, tuple[str, Any, int, str | None]] = {
    "no JSON": (TEXT, b"{", 400, None),
    "no object": (TEXT, b"[1]", 400, None),
    "no UTF-8": (TEXT, b'{"prompt": "\xff"}', 400, None),
    "unknown model": (TEXT, {"model": "big", "prompt": "x"}, 404, "model"),
    "model of a wrong type": (TEXT, {"model": 5, "prompt": "x"}, 400, "model"),
    "no prompt": (TEXT, {}, 400, "prompt"),
    "empty prompt": (TEXT, {"prompt": ""}, 400, "prompt"),
    "two prompts": (TEXT, {"prompt": ["a", "b"]}, 400, "prompt"),
    "mixed prompt": (TEXT, {"prompt": [1, "b"]}, 400, "prompt"),
    "negative token": (TEXT, {"prompt": [1, -1]}, 400, "prompt"),
    "long prompt": (TEXT, {"prompt": [1] * 1000}, 400, "prompt"),
    "long chat": (CHAT, {"messages": [{"role": "user", "content": "x" * 4000}]}, 400, "messages"),
    "no messages": (CHAT, {"messages": []}, 400, "messages"),
    "message of a wrong type": (CHAT, {"messages": ["hi"]}, 400, "messages[0]"),
    "message without a role": (CHAT, {"messages": [{"content": "x"}]}, 400, "messages[0].role"),
    "content of a wrong type": (
        CHAT,
        {"messages": [{"role": "user", "content": 5}]},
        400,
        "messages[0].content",
    ),
    "limit past the context": (TEXT, {"prompt": "x", "max_tokens": 1000}, 400, "max_tokens"),
    "limit of a wrong type": (TEXT, {"prompt": "x", "max_tokens": "9"}, 400, "max_tokens"),
    "limit of true": (TEXT, {"prompt": "x", "max_tokens": True}, 400, "max_tokens"),
    "no limit": (TEXT, {"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
    "minimum over limit": (TEXT, {"prompt": "x", "min_tokens": 17}, 400, "min_tokens"),
    "two answers": (TEXT, {"prompt": "x", "n": 2}, 400, "n"),
    "stream of a wrong type": (TEXT, {"prompt": "x", "stream": "yes"}, 400, "stream"),
    "options without a stream": (TEXT, {"prompt": "x", "stream_options": {"a": 1}}, 400, "stream_options"),
    "temperature": (TEXT, {"prompt": "x", "temperature": -1}, 400, "temperature"),
    "stop": (TEXT, {"prompt": "x", "stop": [1]}, 400, "stop"),
    "extra fields of a wrong type": (TEXT, {"prompt": "x", "vllm_xargs": 5}, 400, "vllm_xargs"),
    "no target": (
        TEXT,
        {"prompt": "x", "vllm_xargs": {"penstock_tpot_s": "nan"}},
        400,
        "vllm_xargs.penstock_tpot_s",
    ),
    "no judge": (
        TEXT,
        {"prompt": "x", "vllm_xargs": {"penstock_judge": "me"}},
        400,
        "vllm_xargs.penstock_judge",
    ),
    "no length": (
        TEXT,
        {"prompt": "x", "vllm_xargs": {"simulated_output_tokens": 0}},
        400,
        "vllm_xargs.simulated_output_tokens",
    ),
    "no thinking": (
        TEXT,
        {"prompt": "x", "vllm_xargs": {"simulated_thinking_tokens": -1}},
        400,
        "vllm_xargs.simulated_thinking_tokens",
    ),
    "nested list": (TEXT, {"prompt": "x", "vllm_xargs": {"penstock_id": [1]}}, 400, "vllm_xargs.penstock_id"),
    "body too large": (TEXT, {"prompt": "x" * 100_001}, 413, None),
    "tokenize nothing": ("/tokenize", {}, 400, "prompt"),
    "no such place": ("/v1/nothing", {}, 404, None),
    "wrong method": ("/health", {}, 405, None),
}


@pytest.mark.parametrize(("path", "body", "status", "param"), ERRORS.values(), ids=ERRORS.keys())
async def test_the_error_of_an_invalid_input_names_the_parameter(
    real_time: RealTime, path: str, body: Any, status: int, param: str | None
) -> None:
    async with real_time() as engine, httpx2.AsyncClient(base_url=engine.url) as http:
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        reply = await http.post(path, **sent)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (status, param)
        assert param is None or param.split(".")[-1] in error["message"]
        assert (await http.get("/health")).status_code == 200


async def test_the_official_client_raises_not_found_and_bad_request(real_time: RealTime) -> None:
    async with real_time() as engine:
        with pytest.raises(openai.NotFoundError, match="'big' does not exist"):
            await engine.client.completions.create(model="big", prompt="x")
        with pytest.raises(openai.BadRequestError, match="must be 1"):
            await engine.client.completions.create(model="tiny", prompt="x", n=2)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_disconnects_frees_its_memory(real_time: RealTime, stream: bool) -> None:
    body = {"prompt": "hi", "max_tokens": 900, "ignore_eos": True, "stream": stream}
    async with real_time(step_s=0.02) as engine:
        async with httpx2.AsyncClient(base_url=engine.url) as http:
            request = http.build_request("POST", "/v1/completions", json=body)
            if stream:
                reply = await http.send(request, stream=True)
                lines = reply.aiter_lines()  # held: collecting it would end the stream
                await anext(lines)
                assert engine.loop.state.running_count == 1
                await reply.aclose()
            else:
                with pytest.raises(httpx2.ReadTimeout):
                    await http.send(http.build_request("POST", "/v1/completions", json=body, timeout=0.1))
        await engine.until(lambda state: state.running_count == 0)
        assert engine.loop.state.free_blocks == engine.loop.state.total_blocks


async def test_an_id_in_use_is_refused(real_time: RealTime) -> None:
    body = {
        "prompt": "hi",
        "max_tokens": 900,
        "ignore_eos": True,
        "stream": True,
        "vllm_xargs": {"penstock_id": "a"},
    }
    async with (
        real_time(step_s=0.01) as engine,
        httpx2.AsyncClient(base_url=engine.url) as http,
        http.stream("POST", "/v1/completions", json=body),
    ):
        again = await http.post("/v1/completions", json=body)
        assert (again.status_code, again.json()["error"]["param"]) == (400, "vllm_xargs.penstock_id")


async def test_metrics_have_vllms_names_and_values(real_time: RealTime) -> None:
    async with real_time() as engine, httpx2.AsyncClient(base_url=engine.url) as http:
        await engine.client.completions.create(
            model="tiny", prompt="12345678", max_tokens=5, extra_body=NO_EOS
        )
        text = (await http.get("/metrics")).text
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels["model_name"] == "tiny" and sample.labels.get("le", "+Inf") == "+Inf"
        if sample.labels.get("finished_reason", "length") == "length"
    }
    expected = {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0,
        "vllm:num_preemptions_total": 0,
        "vllm:prompt_tokens_total": 2,
        "vllm:generation_tokens_total": 5,
        "vllm:request_success_total": 1,
        "vllm:time_to_first_token_seconds_count": 1,
        "vllm:inter_token_latency_seconds_count": 4,
        "vllm:request_time_per_output_token_seconds_count": 1,
        "vllm:e2e_request_latency_seconds_count": 1,
        "vllm:iteration_tokens_total_count": 5,
        "vllm:iteration_tokens_total_sum": 6,
        "penstock_engine_policy_failures_total": 0,
    }
    assert {name: samples.get(name) for name in expected} == expected
