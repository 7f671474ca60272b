"""What routers are told of a replica's cached prefixes, and that they always know the same as it."""

import json

from hypothesis import given
from hypothesis import strategies as st
from penstock_proto.telemetry_pb2 import CachedPrompt, StepReport
from penstock_runtime.prompt_marks import Mark, PromptMarks, prompt_marks
from penstock_sidecar.mirror.prefix_index import PrefixIndex
from penstock_sidecar.mirror.told_beginnings import MOST_TOLD, ToldBeginnings, told_marks
from pytest import MonkeyPatch


def chat(*contents: str) -> PromptMarks:
    messages = [{"role": "user", "content": content} for content in contents]
    return prompt_marks(json.dumps({"messages": messages}).encode())


def reported(index: PrefixIndex, name: str, prompt_tokens: int, cached_tokens: int, resets: int = 0) -> None:
    prompt = CachedPrompt(request_id=name, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)
    index.take(
        StepReport(
            engine_instance="e",
            caches_prefixes=True,
            block_tokens=16,
            cache_resets=resets,
            cached_prompts=[prompt],
        ),
        0,
    )


def keys(told: ToldBeginnings) -> set[int]:
    return {change.key for change in told.all()}


def test_a_prompts_whole_and_its_doubled_beginnings_are_told() -> None:
    index, marks = PrefixIndex(), chat(*"abcdefghijk")
    index.add("one", marks)
    reported(index, "one", 1100, 1088)
    assert keys(index.told) == {marks.marks[at].key for at in (0, 1, 3, 7, 10)}


def test_only_what_is_cached_is_told() -> None:
    index, marks = PrefixIndex(), chat(*"abcdefgh")
    index.add("one", marks)
    reported(index, "one", 800, 400)
    assert keys(index.told) == {marks.marks[at].key for at in (0, 1, 3)}
    reported(index, "one", 800, 0)
    assert keys(index.told) == set()


def test_two_prompts_that_share_a_part_are_found_by_more_than_half_of_it() -> None:
    index = PrefixIndex()
    index.add("one", chat(*"abcdefghijk", "another question"))
    reported(index, "one", 1200, 1200)
    shared = chat(*"abcdefghijk", "a question").marks[:11]
    longest = max(at + 1 for at, mark in enumerate(shared) if mark.key in keys(index.told))
    assert longest > 11 / 2


def test_a_beginning_of_several_prompts_is_told_until_the_last_of_them_is_gone() -> None:
    index = PrefixIndex()
    for name in ("one", "two"):
        index.add(name, chat("system", name))
        reported(index, name, 200, 192)
    [system] = chat("system").marks
    reported(index, "one", 200, 0)
    assert system.key in keys(index.told)
    reported(index, "two", 200, 0)
    assert system.key not in keys(index.told)


def test_nothing_is_told_of_a_cache_that_was_reset() -> None:
    index = PrefixIndex()
    index.add("one", chat("a"))
    reported(index, "one", 100, 96)
    assert keys(index.told)
    index.add("two", chat("b"))
    reported(index, "two", 100, 96, resets=1)
    assert keys(index.told) == {mark.key for mark in chat("b").marks}


def test_what_is_told_is_bounded_and_the_least_recently_served_is_left_out(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_sidecar.mirror.told_beginnings.MOST_TOLD", 4)
    told = ToldBeginnings()
    for number in range(10):
        told.tell(str(number), (number, 100 + number))
    assert keys(told) == {8, 9, 108, 109}


def test_a_reader_that_is_far_behind_is_told_so() -> None:
    told = ToldBeginnings()
    for number in range(MOST_TOLD + 1):
        told.tell("one", (number,))
    assert told.since(0) is None
    assert told.since(told.count) == []


def test_marks_that_are_told_are_few_and_end_with_the_whole() -> None:
    marks = PromptMarks(tuple(Mark(at, at) for at in range(400)))
    assert told_marks(marks) == [0, 1, 3, 7, 15, 31, 63, 127, 255, 399]
    assert told_marks(PromptMarks(marks.marks[:1])) == [0]
    assert told_marks(PromptMarks(marks.marks[:2])) == [0, 1]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcd"), st.lists(st.integers(0, 9), unique=True, max_size=4), st.booleans()
        ),
        max_size=60,
    )
)
def test_a_reader_of_changes_knows_what_is_told(steps: list[tuple[str, list[int], bool]]) -> None:
    told, known, count = ToldBeginnings(), set[int](), 0
    for name, numbers, reads in steps:
        told.tell(name, tuple(numbers))
        if reads:
            for change in told.since(count) or ():
                if change.cached:
                    known.add(change.key)
                else:
                    known.discard(change.key)
            count = told.count
            assert known == keys(told)
