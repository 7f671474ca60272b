"""The prefix cache: hits are exact, shared blocks count once, none leaks, the oldest are evicted first."""

from collections.abc import Sequence
from random import Random

import pytest
from penstock_simulator.prefix_cache.block_keys import recorded_keys, token_keys
from penstock_simulator.prefix_cache.block_pool import BlockPool, OutOfBlocks
from penstock_simulator.prefix_cache.prefix_cache import CachedPrefix, PrefixCache, RequestBlocks

BLOCK = 4


def of_tokens(name: str, tokens: Sequence[int], salt: str = "") -> RequestBlocks:
    return RequestBlocks(name, token_keys(tokens, BLOCK, salt))


def run(cache: PrefixCache, request: RequestBlocks, tokens: int) -> int:
    """Let a request compute its whole prompt. Return the cached tokens."""
    cached = cache.start(request, tokens)
    cache.grow(request, tokens, tokens)
    return cached


Prompt = tuple[list[int], str]


def random_prompt(chance: Random) -> Prompt:
    """Of two token ids only, so that many prompts begin alike."""
    tokens = [chance.randint(0, chance.choice([0, 0, 1])) for _ in range(chance.randint(1, 30))]
    return tokens, chance.choice(["", "tenant"])


@pytest.mark.parametrize("seed", range(20))
def test_no_block_leaks_and_found_blocks_are_held(seed: int) -> None:
    chance = Random(seed)
    blocks = chance.randint(1, 30)
    cache = PrefixCache(blocks, BLOCK)
    running: list[tuple[RequestBlocks, Prompt]] = []
    computed: list[Prompt] = []
    for number in range(100):
        if running and chance.random() < 0.5:
            request, _ = running.pop(chance.randrange(len(running)))
            cache.release(request)
        else:
            tokens, salt = random_prompt(chance)
            request, count = of_tokens(f"r{number}", tokens, salt), len(tokens)
            seen = cache.lookup(request, count)
            assert seen.tokens < count
            assert seen.tokens == 0 or any(
                earlier[: seen.tokens] == tokens[: seen.tokens] and its_salt == salt
                for earlier, its_salt in computed
            )
            if -(-count // BLOCK) - seen.tokens // BLOCK + seen.free_blocks <= cache.pool.free_blocks:
                assert run(cache, request, count) == seen.tokens
                running.append((request, (tokens, salt)))
                computed.append((tokens, salt))
        held = {block for request, _ in running for block in request.blocks}
        assert cache.pool.free_blocks == blocks - len(held)
        assert held.isdisjoint(cache.pool.free_order)
        for _, (tokens, salt) in running:  # its own content is in its own blocks
            whole = [*tokens, 7]
            assert (
                cache.lookup(of_tokens("same", whole, salt), len(whole)).tokens
                == len(tokens) // BLOCK * BLOCK
            )
    for request, _ in running:
        cache.release(request)
    assert cache.pool.free_blocks == blocks


@pytest.mark.parametrize("seed", range(10))
def test_a_waiting_request_sees_every_change_of_its_cached_prefix(seed: int) -> None:
    chance = Random(seed)
    cache = PrefixCache(20, BLOCK)
    waiting = [of_tokens(f"w{number}", [0] * number) for number in (9, 17, 30)]
    running: list[RequestBlocks] = []

    def check() -> None:
        for waits in waiting:
            assert cache.lookup(waits, 31) == cache.lookup(RequestBlocks("new", waits.keys), 31)

    for number in range(100):
        check()
        if running and chance.random() < 0.5:
            cache.release(running.pop(chance.randrange(len(running))))
        elif not running and chance.random() < 0.2:
            assert cache.pool.clear()
        else:
            request, count = of_tokens(f"r{number}", [0] * 30), chance.randint(1, 30)
            found = cache.lookup(request, count)
            if -(-count // BLOCK) - found.tokens // BLOCK + found.free_blocks <= cache.pool.free_blocks:
                cache.start(request, count)
                check()
                cache.grow(request, count, 0)
                check()
                cache.grow(request, count, count)
                running.append(request)


def test_the_tail_of_the_least_recently_used_prefix_is_evicted_first() -> None:
    cache = PrefixCache(6, BLOCK)
    old, used = of_tokens("old", range(12)), of_tokens("used", range(100, 108))
    run(cache, used, 8)
    cache.release(used)
    run(cache, old, 12)
    cache.release(old)
    again = of_tokens("again", range(100, 109))
    assert run(cache, again, 9) == 8  # takes the block that was never used
    cache.release(again)
    taken = of_tokens("new", range(200, 208))
    run(cache, taken, 8)  # its own free block without content, then the tail of `old`
    assert cache.lookup(of_tokens("", range(13)), 13) == CachedPrefix(8, 2)
    assert cache.lookup(of_tokens("", range(100, 109)), 9) == CachedPrefix(8, 2)


def test_shared_blocks_are_held_once_and_free_when_no_request_holds_them() -> None:
    cache = PrefixCache(10, BLOCK)
    first, second = of_tokens("first", range(9)), of_tokens("second", range(9))
    run(cache, first, 9)
    assert cache.lookup(second, 9) == CachedPrefix(8, 0, "first")
    run(cache, second, 9)
    assert cache.pool.free_blocks == 10 - 4
    cache.release(first)
    assert cache.pool.free_blocks == 10 - 3
    cache.release(second)
    assert cache.pool.free_blocks == 10
    assert cache.lookup(second, 9) == CachedPrefix(8, 2)


def test_a_prompt_that_is_cached_whole_computes_its_last_block_again() -> None:
    cache = PrefixCache(10, BLOCK)
    run(cache, of_tokens("a", range(8)), 8)
    assert cache.lookup(of_tokens("b", range(8)), 8).tokens == 4
    assert cache.lookup(of_tokens("b", range(9)), 9).tokens == 8


def test_tenants_share_no_blocks() -> None:
    cache = PrefixCache(10, BLOCK)
    run(cache, of_tokens("a", range(8), "one"), 8)
    assert cache.lookup(of_tokens("b", range(9), "other"), 9).tokens == 0
    assert cache.lookup(of_tokens("b", range(9), "one"), 9).tokens == 8


def test_draft_tokens_are_not_cached_until_they_are_accepted() -> None:
    cache = PrefixCache(10, BLOCK)
    request = of_tokens("a", range(12))
    cache.start(request, 3)
    cache.grow(request, 8, known_tokens=3)
    assert cache.pool.cached_keys == frozenset()
    cache.grow(request, 8, known_tokens=7)
    assert cache.lookup(of_tokens("b", range(12)), 12).tokens == 4


def test_a_request_finds_its_own_answer_cached_and_others_do_not() -> None:
    cache = PrefixCache(10, BLOCK)
    request = RequestBlocks("a", token_keys(range(6), BLOCK))
    run(cache, request, 11)
    cache.release(request)
    assert cache.lookup(request, 12).tokens == 8
    assert cache.lookup(RequestBlocks("b", request.keys), 12).tokens == 4


def test_more_blocks_than_are_free_are_refused_without_a_change() -> None:
    pool = BlockPool(3)
    pool.take(2)
    with pytest.raises(OutOfBlocks, match="2 blocks are wanted, 1 are free"):
        pool.take(2)
    assert pool.free_order == [2]


def test_the_cache_is_cleared_only_while_no_block_is_held() -> None:
    cache = PrefixCache(10, BLOCK)
    request = of_tokens("a", range(9))
    run(cache, request, 9)
    assert not cache.pool.clear()
    cache.release(request)
    assert cache.pool.clear()
    assert cache.lookup(request, 9).tokens == 0
    assert cache.pool.free_blocks == 10


@pytest.mark.parametrize("id_tokens", [1, 3, 4, 6, 16])
def test_recorded_prompts_share_only_blocks_with_equal_ids(id_tokens: int) -> None:
    shared, length = 20, 40
    ids = list(range(-(-length // id_tokens)))
    same = shared // id_tokens
    other = [*ids[:same], *[1000 + number for number in ids[same:]]]
    keys = recorded_keys(ids, id_tokens, length, BLOCK)
    others = recorded_keys(other, id_tokens, length, BLOCK)
    assert len(keys) == len(set(keys)) == length // BLOCK
    equal = [one == two for one, two in zip(keys, others, strict=True)]
    assert equal == [(index + 1) * BLOCK <= same * id_tokens for index in range(length // BLOCK)]
    assert not set(keys) & set(recorded_keys(ids, id_tokens, length, BLOCK, salt="other"))


def test_blocks_after_different_beginnings_are_different_even_if_the_trace_gives_them_one_id() -> None:
    one, other = recorded_keys([1, 2, 5, 6], 16, 64, 16), recorded_keys([3, 2, 5, 6], 16, 64, 16)
    assert not set(one) & set(other)


def test_a_recorded_prompt_has_keys_within_its_ids_and_length() -> None:
    assert len(recorded_keys([1, 2], 16, 100, BLOCK)) == 8
    assert len(recorded_keys([1, 2], 16, 18, BLOCK)) == 4
    assert recorded_keys([], 16, 18, BLOCK) == []
