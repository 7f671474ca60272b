"""Greedy answers through Penstock equal vLLM's own, token for token, with forced preemption and speculation.

vLLM's tokens depend on the other requests in a batch: floats are summed in another order, and of two nearly
equally likely tokens the other one may be chosen. So the step compares only answers without near ties. All is
computed in float32, whose rounding changes a log probability by about 1e-6. A prompt counts only if, in
vLLM's own answer, the best token always exceeds the second by `MARGIN`, a hundred times that.
"""

import asyncio
from collections.abc import Sequence
from random import Random
from string import ascii_lowercase
from typing import Any

import aiohttp
import orjson
from unmodified.load import session

from pool_on_vllm import pools
from pool_on_vllm.context import Reference, VllmContext
from pool_on_vllm.metrics_page import total
from pool_on_vllm.processes import MODEL, LocalPool
from pool_on_vllm.steps.startup import start

PROMPTS, REFERENCES = 48, 12
PROMPT_TOKENS, ANSWER_TOKENS = 200, 160
MARGIN = 2e-4
BEST_EFFORT, USED_MEMORY = 6, 0.6
"""Number of best-effort requests sent first, and the share of memory that they use before others are sent."""


def references(context: VllmContext) -> str:
    """vLLM's own greedy answers are recorded as references"""
    tried = asyncio.run(_collect_references(context.plain_urls[None], context.references))
    kept = len(context.references)
    assert kept == REFERENCES, f"only {kept} of {tried} answers have no near ties"
    return f"{kept} answers of {ANSWER_TOKENS} tokens; {tried - kept} others have near ties and do not count"


def start_small_pool(context: VllmContext) -> str:
    """A replica with little memory, n-gram speculation and `timeModel: auto` starts"""
    return start(
        context, LocalPool(pools.small_memory(context), context.model, 1, context.file("up-small-memory.log"))
    )


def equal_tokens(context: VllmContext) -> str:
    """With forced preemption and speculation, greedy answers equal vLLM's own, token for token"""
    answers = asyncio.run(_answers_of_the_pool(context))
    engine = context.replicas[0].engine
    preempted = total(engine, "vllm:num_preemptions_total")
    drafted = total(engine, "vllm:spec_decode_num_draft_tokens_total")
    accepted = total(engine, "vllm:spec_decode_num_accepted_tokens_total")
    differ = [
        f"{at}: {answer} is not {list(reference.tokens)}"
        for at, (answer, reference) in enumerate(zip(answers, context.references, strict=True))
        if tuple(answer) != reference.tokens
    ]
    assert not differ, "\n".join(differ)
    output = (
        f"{len(answers)} answers, {sum(map(len, answers))} tokens, the same; "
        f"{preempted:.0f} preemptions, {accepted:.0f} of {drafted:.0f} drafts accepted"
    )
    assert preempted, f"no request was preempted: {output}"
    assert 0 < accepted < drafted, f"drafts were not both accepted and rejected: {output}"
    return output


async def _collect_references(url: str, references: list[Reference]) -> int:
    """Collect references, one request at a time. Returns the number of prompts tried."""
    random = Random(11)
    async with session() as http:
        for tried in range(1, PROMPTS + 1):
            prompt = "".join(random.choices(ascii_lowercase, k=PROMPT_TOKENS))
            choice = await _unstreamed(http, url, prompt)
            if without_near_ties(choice):
                references.append(Reference(prompt, tuple(choice["token_ids"])))
            if len(references) == REFERENCES:
                return tried
    return PROMPTS


def without_near_ties(choice: dict[str, Any]) -> bool:
    """Return whether the best token always exceeds the second by `MARGIN`."""
    tops = [sorted(top.values(), reverse=True) for top in choice["logprobs"]["top_logprobs"]]
    return all(len(top) > 1 and top[0] - top[1] >= MARGIN for top in tops)


async def _answers_of_the_pool(context: VllmContext) -> list[list[int]]:
    """Return the pool's answers: best-effort requests fill the memory, then admitted ones need it."""
    url, engine = context.pool.router.url, context.replicas[0].engine
    async with session() as http:

        async def all_of(references: Sequence[Reference], tier: str) -> list[list[int]]:
            return await asyncio.gather(*(_streamed(http, url, one.prompt, tier) for one in references))

        first = asyncio.create_task(all_of(context.references[:BEST_EFFORT], "batch"))
        while await asyncio.to_thread(total, engine, "vllm:kv_cache_usage_perc") < USED_MEMORY:
            assert not first.done(), "the best-effort requests ended before they filled the memory"
        second = await all_of(context.references[BEST_EFFORT:], "chat")
        return [*await first, *second]


async def _streamed(http: aiohttp.ClientSession, url: str, prompt: str, tier: str) -> list[int]:
    """Stream an answer and return its tokens."""
    tokens: list[int] = []
    body = _body(prompt) | {"stream": True}
    async with http.post(f"{url}/v1/completions", json=body, headers={"x-penstock-tier": tier}) as reply:
        assert reply.status == 200, await reply.text()
        async for line in reply.content:
            if line.startswith(b"data: {"):
                choices = orjson.loads(line[6:])["choices"]
                tokens += choices[0]["token_ids"] if choices else ()
    return tokens


async def _unstreamed(http: aiohttp.ClientSession, url: str, prompt: str) -> dict[str, Any]:
    """Return an unstreamed answer, with the two best candidates of each token."""
    body = _body(prompt) | {"logprobs": 2, "return_tokens_as_token_ids": True}
    async with http.post(f"{url}/v1/completions", json=body) as reply:
        assert reply.status == 200, await reply.text()
        choice: dict[str, Any] = (await reply.json())["choices"][0]
        return choice


def _body(prompt: str) -> dict[str, Any]:
    greedy = {"temperature": 0, "max_tokens": ANSWER_TOKENS, "ignore_eos": True, "return_token_ids": True}
    return {"model": MODEL, "prompt": prompt, **greedy}
