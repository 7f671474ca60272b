"""An engine's reports on served prompts: growth, eviction, bounds."""

from collections.abc import Hashable, Sequence
from random import Random

import pytest
from penstock_core.domain import served_prompts
from penstock_core.domain.served_prompts import CachedBlocks, CachedPrompt, ServedPrompts

SIZE = 16


class Cache:
    """A cache of chained blocks: a prompt's cached part ends at the first block that is missing."""

    def __init__(self) -> None:
        self.blocks: dict[Hashable, None] = {}
        self.held = set[Hashable]()
        self.looked_up = 0

    def blocks_of(self, keys: Sequence[Hashable]) -> int:
        self.looked_up += 1
        for index, key in enumerate(keys):
            if key not in self.blocks:
                return index
        return len(keys)

    def look_up(self, keys: Sequence[Hashable], own: Sequence[Hashable] = (), known: int = 0) -> CachedBlocks:
        blocks = self.blocks_of(keys)
        return CachedBlocks(blocks, blocks > 0 and keys[blocks - 1] in self.held, len(own))

    def store(self, *keys: Hashable) -> None:
        self.blocks |= dict.fromkeys(keys)


def keys(name: str, blocks: int) -> list[Hashable]:
    return [(name, index) for index in range(blocks)]


def test_a_prompt_grows_while_it_is_computed() -> None:
    cache = Cache()
    served = ServedPrompts(cache.look_up, SIZE)
    served.started("a", 40, keys("a", 2))
    assert served.changes() == [CachedPrompt("a", 40, 0)]
    cache.store(*keys("a", 1))
    assert served.changes() == [CachedPrompt("a", 40, 16)]
    cache.store(*keys("a", 2))
    served.ended("a")
    assert served.changes() == [CachedPrompt("a", 40, 32)]


def test_the_held_part_of_a_cached_prompt_is_reported_while_it_runs() -> None:
    cache, own = Cache(), ["block"]
    served = ServedPrompts(cache.look_up, SIZE)
    cache.store(*keys("a", 3))
    served.started("a", 60, keys("a", 3), own, 1)
    assert served.changes() == [CachedPrompt("a", 60, 48, 16)]
    own.append("block")
    served.started("a", 60, keys("a", 3), own, 1)
    assert served.changes() == [CachedPrompt("a", 60, 48, 32)]
    served.ended("a")
    assert served.changes() == [CachedPrompt("a", 60, 48, 0)]


def test_a_prompt_evicted_in_full_is_reported_once_more() -> None:
    cache = Cache()
    served = ServedPrompts(cache.look_up, SIZE)
    cache.store(*keys("a", 1))
    served.started("a", 20, keys("a", 1))
    served.ended("a")
    assert served.changes() == [CachedPrompt("a", 20, 16)]
    cache.blocks.clear()
    assert served.changes() == [CachedPrompt("a", 20, 0)]
    assert (served.changes(), len(served)) == ([], 0)


@pytest.mark.parametrize("blocks", [0, served_prompts.MOST_KEYS + 1])
def test_a_prompt_without_a_block_or_with_too_many_is_left_out(blocks: int) -> None:
    served = ServedPrompts(Cache().look_up, SIZE)
    served.started("a", 15, range(blocks))
    served.ended("a")
    assert (len(served), served.changes()) == (0, [])
    served.ended("unknown")


def test_beyond_the_bound_the_oldest_prompts_are_dropped() -> None:
    cache = Cache()
    served = ServedPrompts(cache.look_up, SIZE)
    for number in range(served_prompts.MOST_PROMPTS + 3):
        served.started(str(number), 20, keys(str(number), 1))
    assert len(served) == served_prompts.MOST_PROMPTS
    half = served_prompts.MOST_KEYS // 2
    served.started("long", half * SIZE, keys("long", half))
    served.started("longer", half * SIZE, keys("longer", half + 1))
    assert len(served) == 1, "the two have more blocks than there may be"
    *gone, last = served.changes()
    assert last == CachedPrompt("longer", half * SIZE, 0)
    assert CachedPrompt("long", half * SIZE, 0) in gone, "what is not followed any more is said to be gone"
    assert CachedPrompt("longer", half * SIZE, 0) in served.changes()


def test_a_prompt_that_lost_a_block_counts_as_gone() -> None:
    cache = Cache()
    served = ServedPrompts(cache.look_up, SIZE)
    cache.store(*keys("a", 3))
    served.started("a", 50, keys("a", 3))
    served.ended("a")
    assert served.changes() == [CachedPrompt("a", 50, 48)]
    del cache.blocks["a", 2]
    assert served.changes() == [CachedPrompt("a", 50, 0)]
    assert len(served) == 0


def test_a_preempted_prompt_may_lose_blocks_and_continue() -> None:
    cache = Cache()
    served = ServedPrompts(cache.look_up, SIZE)
    for blocks in (2, 1, 3):
        cache.blocks.clear()
        cache.store(*keys("a", blocks))
        if blocks == 2:
            served.started("a", 50, keys("a", 3))
        assert CachedPrompt("a", 50, blocks * SIZE) in served.changes()


def test_a_continued_prompt_is_used_with_its_continuation_and_evicted_after_it() -> None:
    cache = Cache()
    served = ServedPrompts(cache.look_up, SIZE)
    cache.store(*keys("a", 4), *keys("b", 4))
    for name, blocks in (("a", 2), ("b", 4), ("a", 4)):
        served.started(f"{name}{blocks}", 70, keys(name, blocks))
        served.ended(f"{name}{blocks}")
    served.changes()
    for key in (*reversed(keys("b", 4)), *reversed(keys("a", 4))):
        del cache.blocks[key]
        for prompt in served.changes():
            assert prompt.cached_tokens <= SIZE * cache.blocks_of(
                keys(prompt.request_id[0], int(prompt.request_id[1]))
            )
    assert len(served) == 0


def test_a_prompt_computed_again_is_the_newest() -> None:
    cache = Cache()
    served = ServedPrompts(cache.look_up, SIZE)
    for name in ("a", "b", "a"):
        cache.store(*keys(name, 1))
        served.started(name, 20, keys(name, 1))
        served.ended(name)
    assert len(served) == 2
    assert [prompt.request_id for prompt in served.changes()] == ["b", "a"]


def test_a_prompt_served_twice_keeps_its_continuation_when_one_is_forgotten() -> None:
    cache = Cache()
    served = ServedPrompts(cache.look_up, SIZE)
    cache.store(*keys("a", 2), *keys("b", 1))
    for name, its in (
        ("first", keys("a", 1)),
        ("second", keys("a", 1)),
        ("other", keys("b", 1)),
        ("first", keys("b", 1)),
        ("longer", keys("a", 2)),
    ):
        served.started(name, 40, its)
        served.ended(name)
    served.changes()
    assert [prompt.request_id for prompt in served.changes()] == ["other", "first"], "the least recently used"


def test_a_step_looks_up_few_of_many_prompts() -> None:
    cache = Cache()
    served = ServedPrompts(cache.look_up, SIZE)
    for number in range(400):
        served.started(str(number), 20, keys(str(number), 1))
        cache.store(*keys(str(number), 1))
        served.ended(str(number))
    for _ in range(400 // served_prompts.GROWING):
        served.changes()
    cache.looked_up = 0
    served.changes()
    assert cache.looked_up <= served_prompts.UNCHANGED + served_prompts.IN_TURN


def test_evictions_of_the_oldest_prompts_are_found_first_and_all_in_the_end() -> None:
    """What another process knows by the changes alone, against the cache."""
    random, cache = Random(5), Cache()
    served, known = ServedPrompts(cache.look_up, SIZE), dict[str, int]()
    names: list[str] = []
    for step in range(600):
        name = f"{step}"
        names.append(name)
        served.started(name, 4 * SIZE + 1, keys(name, 4))
        cache.store(*keys(name, 4))
        for key in list(cache.blocks)[: random.choice([0, 3, 6]) if len(cache.blocks) > 200 else 0]:
            del cache.blocks[key]
        known |= {prompt.request_id: prompt.cached_tokens for prompt in served.changes()}
        served.ended(name)
        for there in names[-300:]:
            assert known[there] <= SIZE * cache.blocks_of(keys(there, 4)), "never more than there is"
    for _ in range(100):
        known |= {prompt.request_id: prompt.cached_tokens for prompt in served.changes()}
    assert all(known[name] == SIZE * cache.blocks_of(keys(name, 4)) for name in names[-60:])


def test_prompts_that_are_held_hide_no_eviction() -> None:
    cache = Cache()
    served = ServedPrompts(cache.look_up, SIZE)
    for name in "abcde":
        cache.store(*keys(name, 1))
        served.started(name, 20, keys(name, 1))
        served.ended(name)
    cache.held = {(name, 0) for name in "abc"}
    served.changes()
    del cache.blocks["d", 0]
    assert CachedPrompt("d", 20, 0) in served.changes()
