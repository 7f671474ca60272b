"""Chats at a real vLLM without the plug-in: what a sidecar learns to count as cached is what vLLM finds."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import orjson
import pytest
from penstock_proto.sse import EngineUsage
from penstock_runtime.prompt_marks import prompt_marks
from penstock_sidecar.mirror.learned_prefixes import LearnedPrefixes
from penstock_sidecar.mirror.prefix_index import PrefixIndex
from served.server import Server, serving

BLOCK_TOKENS, BLOCKS = 32, 220
FLAGS = ("--enable-prefix-caching", "--enable-prompt-tokens-details", "--block-size", str(BLOCK_TOKENS))
SESSIONS, REQUESTS, LEARNING = 8, 220, 20
LONGEST_ANSWER = 200
LETTERS = list(range(69, 95))
"""Token ids of a to z: an answer of letters has the same tokens in the next turn's prompt."""

LONGEST_BYTES = 2000
"""Of a session, after which another begins: all sessions have about twice what the cache keeps."""


class Counted(NamedTuple):
    """Tokens of one prompt, those planned as cached, and those that vLLM found."""

    prompt: int
    planned: int
    found: int


class Chats:
    """Sessions, each served by one client at a time.

    knows_size: whether the sidecar knows the size of the KV cache.
    """

    def __init__(self, server: Server, seed: int, knows_size: bool) -> None:
        self._server, self._random = server, Random(seed)
        self._learned = LearnedPrefixes(PrefixIndex(), lambda: BLOCKS * BLOCK_TOKENS * knows_size)
        self._idle: list[list[dict[str, Any]]] = [[] for _ in range(SESSIONS)]

    async def client(self, numbers: Iterator[int]) -> list[Counted]:
        """Send the next turn of a random idle session, one after the other, until numbers end."""
        return [await self._turn(number) for number in numbers]

    async def _turn(self, number: int) -> Counted:
        messages = self._idle.pop(self._random.randrange(len(self._idle)))
        if sum(len(message["content"]) for message in messages) > LONGEST_BYTES:
            messages.clear()
        text = f"request {number} " + "a word " * self._random.randint(5, 40)
        messages.append({"role": "user", "content": text})
        body, name = {"messages": messages}, str(number)
        marks = prompt_marks(orjson.dumps(body))
        planned = self._learned.cached_tokens(marks)
        self._learned.sent(name, marks)
        answer_tokens = self._random.randint(1, LONGEST_ANSWER)
        answer = await self._server.chat(**body, max_tokens=answer_tokens, allowed_token_ids=LETTERS)
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        usage = answer["usage"]
        found = usage["prompt_tokens_details"]["cached_tokens"]
        self._learned.answered(name, EngineUsage(usage["prompt_tokens"], usage["completion_tokens"], found))
        self._learned.ended(name)
        self._idle.append(messages)
        return Counted(usage["prompt_tokens"], planned, found)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("clients", [1, 4])
@pytest.mark.parametrize("knows_size", [True, False])
async def test_the_mean_error_is_within_a_twentieth_of_the_prompt(
    model: Path, tmp_path: Path, knows_size: bool, clients: int
) -> None:
    numbers = iter(range(REQUESTS))
    with serving(model, tmp_path, *FLAGS, "--max-model-len", "4096", blocks=BLOCKS) as server:
        chats = Chats(server, 1, knows_size)
        by_client = await asyncio.gather(*[chats.client(numbers) for _ in range(clients)])
    turns = [turn for served in by_client for turn in served[LEARNING // clients :]]
    hits = sum(turn.found for turn in turns) / sum(turn.prompt for turn in turns)
    error = sum(abs(turn.planned - turn.found) / turn.prompt for turn in turns) / len(turns)
    missing = sum(max(turn.planned - turn.found, 0) / turn.prompt for turn in turns) / len(turns)
    print(f"cached {hits:.1%}, error {error:.2%}, missing {missing:.2%}")
    assert 0.2 < hits < 0.8, "prefixes are found, and many are evicted"
    assert error <= 0.05
