"""Greedy answers through Penstock are vLLM's own, token for token, whatever is done to their requests.

vLLM promises the same tokens only where sums come out alike, and they depend on who shares a batch: floats
are added in another order, and where two tokens are nearly as likely, the other one wins. So this compares
where that cannot happen. Everything is computed in float32, whose rounding moves a log probability by some
1e-6; and of the prompts tried only those count in whose answers, as vLLM gives them alone, the best token is
always `MARGIN` ahead of the second, a hundred times as much.
"""

import asyncio
from collections.abc import Sequence
from random import Random
from string import ascii_lowercase
from typing import Any

import aiohttp
import orjson
from unmodified.load import session

from vllm_story import pools
from vllm_story.figures import total
from vllm_story.servers import MODEL, LocalPool
from vllm_story.steps.beginning import start
from vllm_story.world import Reference, World

TRIED, WANTED = 48, 12
PROMPT_TOKENS, ANSWER_TOKENS = 200, 160
MARGIN = 2e-4
BEST_EFFORT, FULL = 6, 0.6
"""How many come first, as best effort, and which share of the memory they take before the others come."""


def references(world: World) -> str:
    """vLLM's own greedy answers, to compare with"""
    tried = asyncio.run(_try(world.plain[None], world.references))
    kept = len(world.references)
    assert kept == WANTED, f"only {kept} of {tried} answers have no near ties"
    return f"{kept} of {ANSWER_TOKENS} tokens each; {tried - kept} others have near ties and do not count"


def small_pool_is_up(world: World) -> str:
    """A replica with little memory, n-gram drafts and `timeModel: auto`"""
    return start(world, LocalPool(pools.small(world), world.model, 1, world.file("up-small.log")))


def same_tokens(world: World) -> str:
    """With preemption and speculation forced, greedy answers are vLLM's own, token for token"""
    answers = asyncio.run(_through(world))
    engine = world.replicas[0].engine
    preempted = total(engine, "vllm:num_preemptions_total")
    drafted = total(engine, "vllm:spec_decode_num_draft_tokens_total")
    accepted = total(engine, "vllm:spec_decode_num_accepted_tokens_total")
    differ = [
        f"{at}: {answer} is not {list(reference.tokens)}"
        for at, (answer, reference) in enumerate(zip(answers, world.references, strict=True))
        if tuple(answer) != reference.tokens
    ]
    assert not differ, "\n".join(differ)
    said = (
        f"{len(answers)} answers, {sum(map(len, answers))} tokens, the same; "
        f"{preempted:.0f} preemptions, {accepted:.0f} of {drafted:.0f} drafts accepted"
    )
    assert preempted, f"nobody was preempted: {said}"
    assert 0 < accepted < drafted, f"drafts were not both accepted and refused: {said}"
    return said


async def _try(url: str, found: list[Reference]) -> int:
    """One prompt after the other, each alone, until there are enough. Returns how many that took."""
    random = Random(11)
    async with session() as http:
        for tried in range(1, TRIED + 1):
            prompt = "".join(random.choices(ascii_lowercase, k=PROMPT_TOKENS))
            choice = await _whole(http, url, prompt)
            if clear(choice):
                found.append(Reference(prompt, tuple(choice["token_ids"])))
            if len(found) == WANTED:
                return tried
    return TRIED


def clear(choice: dict[str, Any]) -> bool:
    """Whether every token was clearly the best."""
    tops = [sorted(top.values(), reverse=True) for top in choice["logprobs"]["top_logprobs"]]
    return all(len(top) > 1 and top[0] - top[1] >= MARGIN for top in tops)


async def _through(world: World) -> list[list[int]]:
    """Best effort first, until it fills the memory, then those that are promised something and need it."""
    url, engine = world.up.router.url, world.replicas[0].engine
    async with session() as http:

        async def all_of(references: Sequence[Reference], tier: str) -> list[list[int]]:
            return await asyncio.gather(*(_streamed(http, url, one.prompt, tier) for one in references))

        first = asyncio.create_task(all_of(world.references[:BEST_EFFORT], "batch"))
        while await asyncio.to_thread(total, engine, "vllm:kv_cache_usage_perc") < FULL:
            assert not first.done(), "best effort came to its end before it had filled the memory"
        second = await all_of(world.references[BEST_EFFORT:], "chat")
        return [*await first, *second]


async def _streamed(http: aiohttp.ClientSession, url: str, prompt: str, tier: str) -> list[int]:
    """The tokens of an answer, as they stream."""
    tokens: list[int] = []
    body = _body(prompt) | {"stream": True}
    async with http.post(f"{url}/v1/completions", json=body, headers={"x-penstock-tier": tier}) as reply:
        assert reply.status == 200, await reply.text()
        async for line in reply.content:
            if line.startswith(b"data: {"):
                choices = orjson.loads(line[6:])["choices"]
                tokens += choices[0]["token_ids"] if choices else ()
    return tokens


async def _whole(http: aiohttp.ClientSession, url: str, prompt: str) -> dict[str, Any]:
    """The one choice, with the two best of each token."""
    body = _body(prompt) | {"logprobs": 2, "return_tokens_as_token_ids": True}
    async with http.post(f"{url}/v1/completions", json=body) as reply:
        assert reply.status == 200, await reply.text()
        choice: dict[str, Any] = (await reply.json())["choices"][0]
        return choice


def _body(prompt: str) -> dict[str, Any]:
    greedy = {"temperature": 0, "max_tokens": ANSWER_TOKENS, "ignore_eos": True, "return_token_ids": True}
    return {"model": MODEL, "prompt": prompt, **greedy}
