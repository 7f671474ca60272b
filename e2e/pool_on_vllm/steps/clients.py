"""The official `openai` client, unmodified, against the router."""

import openai
from openai.types.chat import ChatCompletionUserMessageParam

from pool_on_vllm.servers import MODEL
from pool_on_vllm.world import World

TOKENS = 40
QUESTION: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "How does a penstock work?"}]
PROMPT = "A penstock is"


def client_of(world: World) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{world.up.router.url}/v1", api_key="none", max_retries=0)


def chat(world: World) -> str:
    """The official client chats, whole and as a stream"""
    with client_of(world) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        ask = client.chat.completions
        whole = ask.create(
            model=MODEL, messages=QUESTION, max_tokens=TOKENS, temperature=0, extra_body={"ignore_eos": True}
        )
        stream = ask.create(
            model=MODEL,
            messages=QUESTION,
            max_tokens=TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content, (text, whole)
    assert chunks[-1].usage == whole.usage, (chunks[-1].usage, whole.usage)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == TOKENS, whole.usage
    return f"{len(chunks)} chunks and one piece, the same text and usage ({_said(whole.usage)})"


def completions(world: World) -> str:
    """The official client completes, whole and as a stream"""
    with client_of(world) as client:
        ask = client.completions
        whole = ask.create(
            model=MODEL, prompt=PROMPT, max_tokens=TOKENS, temperature=0, extra_body={"ignore_eos": True}
        )
        stream = ask.create(
            model=MODEL,
            prompt=PROMPT,
            max_tokens=TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = list(stream)
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].text, (text, whole)
    assert chunks[-1].usage == whole.usage, (chunks[-1].usage, whole.usage)
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(PROMPT), TOKENS), whole.usage
    return f"{len(chunks)} chunks and one piece, the same text and usage ({_said(whole.usage)})"


def _said(usage: openai.types.CompletionUsage) -> str:
    return f"{usage.prompt_tokens} and {usage.completion_tokens} tokens"
