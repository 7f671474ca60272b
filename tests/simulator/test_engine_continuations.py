"""An answer follows from its prompt, so another engine can continue it, as with a model at temperature 0."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_simulator.http.synthetic_text import (
    HASHED_TOKENS,
    answer_ids,
    answer_start,
    last_token_ids,
    synthetic_text,
    token_ids,
)

RealTime = Callable[..., AbstractAsyncContextManager[Any]]
ASKS_IDS: dict[str, Any] = {"model": "tiny", "return_token_ids": True}
CHAT: dict[str, Any] = {
    "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
}
COMPLETION: dict[str, Any] = {"prompt": "once upon a time"}


@given(st.lists(st.integers(0, 200_000), max_size=40), st.integers(0, 90), st.integers(0, 90))
def test_a_prompt_that_ends_within_an_answer_is_continued_from_there(
    prompt: list[int], kept: int, more: int
) -> None:
    seed, begin = answer_start(prompt)
    answer = range(begin, begin + kept + more)
    continued = answer_start(prompt + answer_ids(answer[:kept], seed))
    assert continued == (seed, begin + kept)
    rest = range(continued.position, continued.position + more)
    assert synthetic_text(rest, seed) == synthetic_text(answer[kept:], seed)
    assert answer_ids(rest, seed) == answer_ids(answer, seed)[kept:]


@given(st.text(max_size=120))
def test_the_end_of_a_text_identifies_its_continuation(text: str) -> None:
    ids = token_ids(text)
    assert last_token_ids(text) == ids[-HASHED_TOKENS:]
    assert answer_start(last_token_ids(text)) == answer_start(ids)


@pytest.mark.parametrize("body", [CHAT, COMPLETION], ids=["chat", "completion"])
async def test_two_engines_give_the_same_answer_and_continue_each_others(
    real_time: RealTime, body: dict[str, Any]
) -> None:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    whole_length = {"vllm_xargs": {"simulated_output_tokens": 9}, "max_tokens": None}
    async with real_time() as first, real_time() as second:
        async with httpx2.AsyncClient(base_url=first.url) as http:
            whole = (await http.post(path, json=ASKS_IDS | body | whole_length)).json()
        async with httpx2.AsyncClient(base_url=second.url) as http:
            again = (await http.post(path, json=ASKS_IDS | body | whole_length)).json()
            (choice,) = whole["choices"]
            prompt_ids = whole.get("prompt_token_ids") or choice["prompt_token_ids"]
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            assert again["choices"] == whole["choices"]
            for kept in range(1, 9):
                requested = {"prompt": prompt_ids + choice["token_ids"][:kept]} | whole_length
                rest = (await http.post("/v1/completions", json=ASKS_IDS | requested)).json()
                assert text[: 4 * kept] + rest["choices"][0]["text"] == text
                assert rest["choices"][0]["token_ids"] == choice["token_ids"][kept:]
                assert rest["choices"][0]["finish_reason"] == "stop"
                assert rest["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


@pytest.mark.parametrize("body", [CHAT, COMPLETION], ids=["chat", "completion"])
async def test_a_stream_has_token_ids_on_request(real_time: RealTime, body: dict[str, Any]) -> None:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    requested = body | {"model": "tiny", "max_tokens": 5, "ignore_eos": True}
    async with real_time() as engine, httpx2.AsyncClient(base_url=engine.url) as http:
        whole = (await http.post(path, json=requested | {"return_token_ids": True})).json()
        reported = (await http.post(path, json=requested | {"return_token_ids": True, "stream": True})).text
        plain = (await http.post(path, json=requested | {"stream": True})).text
    ids = whole["choices"][0]["token_ids"]
    assert sum(reported.count(f'"token_ids":[{id}]') for id in set(ids)) == 5
    assert reported.count('"prompt_token_ids"') == 1
    assert "token_ids" not in plain
