"""The prefix cache beside vLLM's own KV cache manager: the same operations, compared block by block.

Random lives of an engine's memory: sessions whose next prompt begins with the last answer, branches of them,
prompts that are only partly alike, two tenants, several requests at once, chunks, draft tokens, preemption,
clients that leave, a cache that is reset. After every step the blocks that a request found, the new blocks
that it was given, the order of the free queue and the cached content must be vLLM's.
"""

import random
from dataclasses import dataclass
from typing import Any

import pytest
from penstock_simulator.prefix_cache.block_keys import token_keys
from penstock_simulator.prefix_cache.prefix_cache import PrefixCache, RequestBlocks
from penstock_simulator.real_vllm.scheduler import EngineShape, build_scheduler

STEPS = 1500
CHUNKS = (1, 7, 50)
SALTS = ("", "tenant-a", "tenant-b")


@dataclass
class Memory:
    """vLLM's manager and Penstock's, with the operations applied to both."""

    blocks: int
    block_tokens: int

    def __post_init__(self) -> None:
        shape = EngineShape(self.blocks, self.block_tokens, 4096, 64, 0, prefix_caching=True)
        self.vllm = build_scheduler(shape).kv_cache_manager
        self.ours = PrefixCache(self.blocks, self.block_tokens)
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        hash_of = get_hash_fn_by_name("sha256")
        init_none_hash(hash_of)
        self.hasher = get_request_block_hasher(self.block_tokens, hash_of)
        self.key_of_hash: dict[bytes, Any] = {}

    def new(self, name: str, tokens: list[int], salt: str) -> "Both":
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        params = SamplingParams(max_tokens=100_000, ignore_eos=True)
        request = Request(name, list(tokens), params, None, cache_salt=salt or None, block_hasher=self.hasher)
        one = Both(name, salt, list(tokens), request, RequestBlocks(name))
        self.name_blocks(one)
        return one

    def name_blocks(self, one: "Both") -> None:
        """Give our side the keys of all its tokens, and note which of vLLM's hashes are which of them."""
        one.ours.keys = token_keys(one.tokens, self.block_tokens, one.salt)
        assert len(one.ours.keys) == len(one.vllm.block_hashes)
        for digest, key in zip(one.vllm.block_hashes, one.ours.keys, strict=True):
            assert self.key_of_hash.setdefault(bytes(digest), key) == key

    def check(self) -> None:
        """Free blocks in their order, and cached content, are the same."""
        pool = self.vllm.block_pool
        theirs = [block.block_id - 1 for block in pool.free_block_queue.get_all_free_blocks()]
        assert self.ours.pool.free_order == theirs
        cached = {self.key_of_hash[bytes(key)[:-4]] for key in pool.cached_block_hash_to_block._cache}
        assert self.ours.pool.cached_keys == cached


@dataclass
class Both:
    """A request on both sides."""

    name: str
    salt: str
    tokens: list[int]
    vllm: Any
    ours: RequestBlocks
    computed: int = 0


def numbers(found: Any) -> list[int]:
    return [block.block_id - 1 for block in found.blocks[0]]


def start(memory: Memory, one: Both, tokens: int) -> int | None:
    """Start a request with a chunk of `tokens`; returns its cached tokens, None if there is no room."""
    found, cached, _ = memory.vllm.get_computed_blocks(one.vllm)
    assert isinstance(cached, int)
    whole = len(one.tokens)
    seen = memory.ours.lookup(one.ours, whole)
    assert seen.tokens == cached
    tokens = min(tokens, whole - cached)
    new = memory.vllm.allocate_slots(one.vllm, tokens, cached, found, full_sequence_must_fit=True)
    blocks = -(-whole // memory.block_tokens) - cached // memory.block_tokens + seen.free_blocks
    assert (blocks <= memory.ours.pool.free_blocks) == (new is not None)
    if new is None:
        return None
    assert memory.ours.start(one.ours, whole) == cached
    assert one.ours.blocks == numbers(found)
    assert memory.ours.grow(one.ours, cached + tokens, whole) == numbers(new)
    one.computed = one.vllm.num_computed_tokens = cached + tokens
    return cached


def go_on(memory: Memory, one: Both, tokens: int, drafts: int = 0) -> bool:
    """Compute more of a running request, and its drafts at its end. Returns whether there is room."""
    pending = len(one.tokens) - one.computed
    tokens = min(tokens, pending)
    drafts = drafts if tokens == pending else 0
    new = memory.vllm.allocate_slots(one.vllm, tokens + drafts)
    kv_tokens = one.computed + tokens + drafts
    blocks = -(-kv_tokens // memory.block_tokens) - len(one.ours.blocks)
    assert (blocks <= memory.ours.pool.free_blocks) == (new is not None)
    if new is None:
        return False
    assert memory.ours.grow(one.ours, kv_tokens, len(one.tokens)) == numbers(new)
    one.computed += tokens
    one.vllm.num_computed_tokens = one.computed
    return True


def release(memory: Memory, one: Both) -> None:
    memory.vllm.free(one.vllm)
    memory.ours.release(one.ours)
    one.computed = one.vllm.num_computed_tokens = 0


class Life:
    """A random life of one engine's memory."""

    def __init__(self, memory: Memory, seed: int) -> None:
        self.memory, self.chance = memory, random.Random(seed)
        self.longest = memory.blocks * memory.block_tokens // 3
        self.histories = [self.content(self.longest // 4), []]
        self.running: list[Both] = []
        self.waiting: list[Both] = []
        self.number = self.hits = self.preempted = self.hits_of_preempted = 0

    def content(self, tokens: int) -> list[int]:
        return [self.chance.randrange(1000) for _ in range(tokens)]

    def step(self) -> None:
        if self.chance.random() < 0.3 and len(self.waiting) < 10:
            self.arrive()
        while self.waiting and len(self.running) < 8 and self.start():
            pass
        for one in list(self.running):
            if one in self.running:
                self.compute(one)
        if self.running and self.chance.random() < 0.02:
            release(self.memory, self.running.pop(self.chance.randrange(len(self.running))))
        if self.chance.random() < 0.002:
            assert self.memory.ours.pool.clear() == self.memory.vllm.reset_prefix_cache()

    def arrive(self) -> None:
        """A prompt that continues an earlier request, branches off it, or repeats it."""
        self.number += 1
        history = self.chance.choice(self.histories)
        kept = history[: self.chance.choice([len(history), self.chance.randint(0, len(history))])]
        more = self.chance.choice([0, 1, self.memory.block_tokens, self.chance.randrange(self.longest)])
        prompt = [*kept, *self.content(more)][: self.longest] or [1]
        self.waiting.append(self.memory.new(f"r{self.number}", prompt, self.chance.choice(SALTS)))

    def start(self) -> bool:
        one = self.waiting[0]
        cached = start(self.memory, one, self.chance.choice([1, self.memory.block_tokens, 10_000]))
        if cached is None:
            return False
        self.running.append(self.waiting.pop(0))
        self.hits += cached > 0
        self.hits_of_preempted += cached > 0 and one.vllm.num_output_tokens > 0
        return True

    def compute(self, one: Both) -> None:
        """A chunk or a decode, for which those started last are preempted if there is no room."""
        drafts = self.chance.choice([0, 0, 0, 4])
        while one.computed < len(one.tokens) and not go_on(
            self.memory, one, self.chance.choice(CHUNKS), drafts
        ):
            victim = self.running.pop()
            release(self.memory, victim)
            self.waiting.insert(0, victim)
            self.preempted += 1
            if victim is one:
                return
        if one.computed == len(one.tokens):
            self.generate(one)

    def generate(self, one: Both) -> None:
        one.tokens += self.content(1)
        one.vllm.append_output_token_ids(one.tokens[-1])
        self.memory.name_blocks(one)
        if self.chance.random() < 0.03 or len(one.tokens) > 2 * self.longest:
            self.running.remove(one)
            release(self.memory, one)
            self.histories.append(one.tokens)


@pytest.mark.parametrize(("blocks", "block_tokens"), [(60, 16), (300, 16), (40, 64)])
def test_hits_blocks_and_evictions_equal_vllms(blocks: int, block_tokens: int) -> None:
    memory = Memory(blocks, block_tokens)
    life = Life(memory, seed=blocks)
    for _ in range(STEPS):
        life.step()
        memory.check()
    assert life.hits > 50 and memory.ours.pool.evictions > 500
    if blocks < 100:
        assert life.preempted > 10 and life.hits_of_preempted > 5


def test_a_whole_prompt_that_is_cached_computes_its_last_block() -> None:
    memory = Memory(100, 16)
    for name, tokens, cached in (("a", 96, 0), ("b", 96, 80), ("c", 97, 96)):
        one = memory.new(name, list(range(tokens)), "")
        assert start(memory, one, 10_000) == cached
        release(memory, one)
        memory.check()
