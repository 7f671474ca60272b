"""The official `openai` client, unmodified, against the router."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import openai
from openai.types.chat import ChatCompletionUserMessageParam

from pool_on_vllm.context import VllmContext
from pool_on_vllm.processes import MODEL

TOKENS = 40
QUESTION: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "How does a penstock work?"}]
PROMPT = "A penstock is"


def client_of(context: VllmContext) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{context.pool.router.url}/v1", api_key="none", max_retries=0)


def chat(context: VllmContext) -> str:
    """The official client gets the same chat answer with and without streaming"""
    with client_of(context) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        create: Any = partial(client.chat.completions.create, model=MODEL, messages=QUESTION, **_options())
        answer = create()
        chunks: list[Any] = list(create(stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return _check_equal(answer.choices[0].message.content, answer.usage, text, chunks)


def completions(context: VllmContext) -> str:
    """The official client gets the same completion with and without streaming"""
    with client_of(context) as client:
        create: Any = partial(client.completions.create, model=MODEL, prompt=PROMPT, **_options())
        answer = create()
        chunks: list[Any] = list(create(stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert answer.usage.prompt_tokens == len(PROMPT), answer.usage
    return _check_equal(answer.choices[0].text, answer.usage, text, chunks)


def _options() -> dict[str, Any]:
    return {"max_tokens": TOKENS, "temperature": 0, "extra_body": {"ignore_eos": True}}


def _check_equal(answer: str | None, usage: Any, streamed: str, chunks: Sequence[Any]) -> str:
    """Check that a streamed answer equals the unstreamed one."""
    assert streamed == answer, (streamed, answer)
    assert chunks[-1].usage == usage, (chunks[-1].usage, usage)
    assert usage.completion_tokens == TOKENS, usage
    tokens = f"{usage.prompt_tokens} and {usage.completion_tokens} tokens"
    return f"{len(chunks)} chunks, the same text and usage as without streaming ({tokens})"
