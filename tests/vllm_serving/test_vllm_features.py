"""What vLLM can do it does under the plug-in too: the answers are those of vLLM as it comes.

All on real servers of one tiny random model. Its floats have 32 bits, so greedy answers do not depend on who
else is in the batch, and a chunk, a preemption or a draft that went wrong would show in the text.
"""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from served.server import NAME, PATIENCE_S, Server, data_of

PROMPTS = [f"{number}: the quick brown fox jumps over the lazy dog. " * 4 for number in range(6)]

WITH_SLO = {"penstock_best_effort": False, "penstock_ttft_s": 60.0, "penstock_tpot_s": 0.1}
"""As the sidecar says it; `slos-serve` uses draft tokens for admitted requests."""


def asks(prompts: list[str], tokens: int, **more: Any) -> list[dict[str, Any]]:
    return [{"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **more} for prompt in prompts]


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110  # a server has to be asked
            await asyncio.sleep(0.05)
    assert condition(), what


async def test_drafts_that_are_accepted_change_no_answer(plain: Server, drafting: Server) -> None:
    before = drafting.counted("vllm:spec_decode_num_accepted_tokens_total")
    requested = asks(PROMPTS, 300, vllm_xargs=WITH_SLO)
    assert await drafting.texts(requested) == await plain.texts(requested)
    assert drafting.counted("vllm:spec_decode_num_accepted_tokens_total") > before


async def test_a_cached_prompt_gets_the_same_answer(plain: Server, drafting: Server) -> None:
    requested = asks(["to be cached, word for word; " * 20], 40)[0]
    first, again = await drafting.complete(**requested), await drafting.complete(**requested)
    assert first["choices"][0]["text"] == again["choices"][0]["text"] == (await plain.texts([requested]))[0]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128


@pytest.mark.parametrize("server", ["drafting", "adapting"])
async def test_structured_answers_are_valid(server: str, request: pytest.FixtureRequest) -> None:
    engine: Server = request.getfixturevalue(server)
    colours = ["red", "green", "blue"]
    fields = {"colour": {"enum": colours}, "known": {"type": "boolean"}}
    schema = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    requested = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    say = [{"role": "user", "content": "Which colour?"}]
    free, chosen, by_rule, chat = await asyncio.gather(
        engine.complete(prompt="free ", max_tokens=60, ignore_eos=True),
        engine.complete(prompt="one ", max_tokens=60, structured_outputs={"choice": colours}),
        engine.complete(prompt="a number ", max_tokens=60, structured_outputs={"regex": "[0-9]{3}-[0-9]{2}"}),
        engine.chat(messages=say, max_tokens=120, response_format=requested),
    )
    assert free["usage"]["completion_tokens"] == 60
    assert chosen["choices"][0]["text"] in colours
    assert re.fullmatch("[0-9]{3}-[0-9]{2}", by_rule["choices"][0]["text"])
    answer = json.loads(chat["choices"][0]["message"]["content"])
    assert answer.keys() == fields.keys()
    assert answer["colour"] in colours
    assert isinstance(answer["known"], bool)


@pytest.mark.parametrize("server", ["drafting", "adapting"])
async def test_several_answers_have_their_probabilities(
    server: str, plain: Server, request: pytest.FixtureRequest
) -> None:
    engine: Server = request.getfixturevalue(server)
    requested = {"prompt": "twice ", "max_tokens": 24, "ignore_eos": True, "n": 2, "logprobs": 2}
    requested |= {"temperature": 0.7, "seed": 11}
    ours, theirs = await asyncio.gather(engine.complete(**requested), plain.complete(**requested))
    assert [choice["index"] for choice in ours["choices"]] == [0, 1]
    assert ours["usage"]["completion_tokens"] == 48
    for mine, its in zip(ours["choices"], theirs["choices"], strict=True):
        assert mine["logprobs"]["tokens"] == its["logprobs"]["tokens"]
        assert mine["logprobs"]["token_logprobs"] == pytest.approx(
            its["logprobs"]["token_logprobs"], abs=1e-3
        )


@pytest.mark.parametrize("server", ["drafting", "adapting"])
async def test_a_stop_string_ends_the_answer_before_it(
    server: str, plain: Server, request: pytest.FixtureRequest
) -> None:
    engine: Server = request.getfixturevalue(server)
    (text,) = await plain.texts(asks(["stop there "], 60))
    stop = text[20:24]
    (choice,) = (await engine.complete(**asks(["stop there "], 60, stop=[stop])[0]))["choices"]
    assert choice["text"] == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("server", ["drafting", "adapting"])
async def test_a_client_that_disconnects_leaves_no_state(server: str, request: pytest.FixtureRequest) -> None:
    engine: Server = request.getfixturevalue(server)
    before_tokens = engine.counted("vllm:generation_tokens_total")
    events = engine.events(prompt="never read to its end ", max_tokens=900, ignore_eos=True)
    for _ in range(3):
        await anext(events)
    await events.aclose()
    await until(lambda: engine.counted("vllm:num_requests_running") == 0, "no request runs")
    assert engine.counted("vllm:generation_tokens_total") - before_tokens < 900, "it ran to its end"
    await until(lambda: engine.counted("vllm:kv_cache_usage_perc") == 0, "no block is held")
    assert (await engine.complete(prompt="next ", max_tokens=4, ignore_eos=True))["usage"][
        "completion_tokens"
    ] == 4


async def test_adapters_are_served_beside_the_model(plain: Server, adapting: Server) -> None:
    requested = [{**body, "model": model} for body in asks(PROMPTS[:3], 40) for model in (NAME, "other")]
    ours, theirs = await adapting.texts(requested), await plain.texts(requested)
    assert ours == theirs
    assert all(own != adapted for own, adapted in zip(ours[::2], ours[1::2], strict=True))


def admitted(body: dict[str, Any], number: int) -> dict[str, Any]:
    """The same with targets, as a sidecar writes them."""
    fields = {"penstock_id": f"admitted-{number}", "penstock_tier": "chat", "penstock_best_effort": False}
    targets = {"penstock_ttft_s": 0.5, "penstock_tpot_s": 0.05, "penstock_output_tokens": body["max_tokens"]}
    return {**body, "vllm_xargs": {**fields, **targets}}


@pytest.mark.parametrize("server", ["drafting", "adapting"])
async def test_a_preempted_request_is_answered_once_and_in_full(
    server: str, plain: Server, request: pytest.FixtureRequest
) -> None:
    engine: Server = request.getfixturevalue(server)
    before = engine.counted("vllm:num_preemptions_total")
    waiting, urgent = asks(PROMPTS[:3], 400), asks(PROMPTS[3:], 250)
    streams = [asyncio.create_task(streamed(engine, body)) for body in waiting]
    await until(lambda: engine.counted("vllm:num_requests_running") >= 1, "they run")
    streams += [
        asyncio.create_task(streamed(engine, admitted(body, number))) for number, body in enumerate(urgent)
    ]
    texts = await asyncio.gather(*streams)
    assert engine.counted("vllm:num_preemptions_total") > before
    assert texts == await plain.texts([*waiting, *urgent])


async def streamed(engine: Server, body: dict[str, Any]) -> str:
    """Return a stream's text after checking that it ended once, with the requested number of tokens."""
    events = [event async for event in engine.events(**body, stream_options={"include_usage": True})]
    assert events.count("[DONE]") == 1
    assert events[-1] == "[DONE]"
    pages = [data_of(event) for event in events[:-1]]
    choices = [choice for page in pages for choice in page["choices"]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert pages[-1]["usage"]["completion_tokens"] == body["max_tokens"]
    return "".join(choice["text"] for choice in choices)


def test_the_servers_run_their_schedulers(plain: Server, drafting: Server, adapting: Server) -> None:
    assert "penstock: policy" not in plain.printed_text
    assert "penstock: policy slos-serve" in drafting.printed_text
    assert "penstock: policy slos-serve" in adapting.printed_text
