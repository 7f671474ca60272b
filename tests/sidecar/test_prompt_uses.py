"""Prompts in the order of their last use: how much a cache must have to still hold a prompt's beginning."""

from random import Random

import pytest
from penstock_runtime.prompt_marks import Mark, PromptMarks
from penstock_sidecar.mirror.prompt_uses import KnownPrefix, PromptUses


def chain(*keys: int) -> PromptMarks:
    """A prompt with these marks, ten token ids apart."""
    return PromptMarks(tuple(Mark(key, 10 * at) for at, key in enumerate(keys, 1)), token_ids=True)


def sends(uses: PromptUses, name: str, marks: PromptMarks, kept: int = 0) -> None:
    uses.sent(name, marks, uses.known(marks).own_tokens, kept)


def serves(uses: PromptUses, name: str, marks: PromptMarks, answer_tokens: int = 0) -> None:
    sends(uses, name, marks)
    uses.answered(name, marks, marks.size, answer_tokens)
    uses.ended(name)


def test_a_prompt_is_deeper_after_others_were_used() -> None:
    uses = PromptUses()
    serves(uses, "old", chain(1, 2), answer_tokens=5)
    assert uses.known(chain(1, 2)).depths == (10, 20)
    serves(uses, "new", chain(7), answer_tokens=100)
    assert uses.known(chain(1, 2)).depths == (120, 130)


def test_a_later_turn_replaces_the_earlier_one_and_counts_it_once() -> None:
    uses = PromptUses()
    serves(uses, "turn 1", chain(1, 2), answer_tokens=5)
    serves(uses, "other", chain(7))
    serves(uses, "turn 2", chain(1, 2, 3), answer_tokens=5)
    assert uses.known(chain(1, 2, 3)).depths == (10, 20, 30)
    assert uses.known(chain(7)).depths == (45,)
    assert uses.total == 50


def test_the_next_turn_knows_the_answer_that_it_repeats() -> None:
    uses = PromptUses()
    serves(uses, "turn 1", chain(1, 2), answer_tokens=5)
    serves(uses, "other", chain(7), answer_tokens=100)
    known = uses.known(chain(1, 2, 3, 4))
    assert (known.answer_tokens, known.answer_depth) == (5, 135)


@pytest.mark.parametrize("marks", [chain(1, 2), chain(1, 8, 9)], ids=["repeated prompt", "other message"])
def test_a_prompt_that_repeats_no_answer_knows_none(marks: PromptMarks) -> None:
    uses = PromptUses()
    serves(uses, "turn 1", chain(1, 2), answer_tokens=5)
    assert uses.known(marks).answer_tokens == 0


def test_the_answer_of_a_request_under_way_is_unknown() -> None:
    uses = PromptUses()
    serves(uses, "turn 1", chain(1, 2), answer_tokens=5)
    sends(uses, "again", chain(1, 2))
    assert uses.known(chain(1, 2, 3)).answer_tokens == 0


def test_a_repeated_answer_counts_once() -> None:
    uses = PromptUses()
    serves(uses, "turn 1", chain(1, 2), answer_tokens=10)
    uses.repeat_answer(2)
    serves(uses, "turn 2", chain(1, 2, 3))
    assert uses.total == 30


def test_a_branch_keeps_the_common_prefix_recent() -> None:
    uses = PromptUses()
    serves(uses, "one", chain(1, 2, 3))
    serves(uses, "other", chain(1, 8))
    assert uses.known(chain(1, 2, 3)) == KnownPrefix((10, 10, 10), (10, 20, 30), (10, 30, 40))


def test_a_request_in_progress_takes_memory_and_is_not_found() -> None:
    uses = PromptUses()
    serves(uses, "old", chain(1))
    sends(uses, "under way", chain(7, 8))
    assert uses.known(chain(1)).depths == (30,)
    assert uses.known(chain(7, 8)).depths == ()


def test_requests_in_progress_are_more_recent_than_an_answered_one() -> None:
    uses = PromptUses()
    sends(uses, "first", chain(1))
    sends(uses, "second", chain(7))
    uses.answered("first", chain(1), 10, 0)
    assert uses.known(chain(1)).depths == (20,)


def test_marks_shared_with_a_request_in_progress_are_found_once_another_is_answered() -> None:
    uses = PromptUses()
    sends(uses, "first", chain(1, 2))
    sends(uses, "second", chain(1, 2, 3))
    uses.answered("first", chain(1, 2), 40, 0)
    assert uses.known(chain(1, 2, 3)) == KnownPrefix((20, 20), (20, 40), (20, 40))


def test_a_request_without_an_answer_leaves_what_was_cached_before() -> None:
    uses = PromptUses()
    serves(uses, "turn 1", chain(1, 2))
    sends(uses, "turn 2", chain(1, 2, 3), kept=1)
    uses.ended("turn 2")
    assert uses.known(chain(1, 2, 3)).depths == (10,)


def test_the_deepest_requests_are_named() -> None:
    uses = PromptUses()
    serves(uses, "old", chain(1, 2))
    serves(uses, "new", chain(3))
    assert uses.deeper_than(30) == set()
    assert uses.deeper_than(29) == {"old"}
    assert uses.deeper_than(9) == {"old", "new"}


def test_the_oldest_prompts_are_forgotten_beyond_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_sidecar.mirror.prompt_uses.MOST_PROMPTS", 3)
    monkeypatch.setattr("penstock_sidecar.mirror.prompt_uses.MOST_MARKS", 5)
    uses = PromptUses()
    for number in range(5):
        serves(uses, str(number), chain(number))
    assert [bool(uses.known(chain(number)).depths) for number in range(5)] == [False, False, True, True, True]
    serves(uses, "long", chain(11, 12, 13, 14))
    assert [bool(uses.known(chain(number)).depths) for number in range(5)] == [False] * 4 + [True]


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_events_counts_each_token_once(seed: int) -> None:
    """Prompts of a tree, sent, answered and given up in any order."""
    chance, uses = Random(seed), PromptUses()
    under_way: dict[str, PromptMarks] = {}
    computed = 0
    for number in range(300):
        if under_way and chance.random() < 0.6:
            name = chance.choice(list(under_way))
            marks = under_way.pop(name)
            if chance.random() < 0.7:
                uses.answered(name, marks, marks.size, 3)
                computed += 3
            uses.ended(name)
        else:
            keys = [1]
            while len(keys) < 6 and chance.random() < 0.8:
                keys.append(2 * keys[-1] + chance.randint(0, 1))
            under_way[str(number)] = chain(*keys)
            sends(uses, str(number), under_way[str(number)], kept=chance.randint(0, 2))
        known = uses.known(chain(1, 3, 6, 12))
        assert list(known.depths) == sorted(known.depths)
        assert all(depth >= tokens for tokens, depth in zip(known.tokens, known.depths, strict=True))
    for name in under_way:
        uses.ended(name)
    assert uses.total <= computed + 10 * 63
