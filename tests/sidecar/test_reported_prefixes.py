"""What routers are reported of a replica's cached prefixes, and that they always know the same as it."""

import json

from hypothesis import given
from hypothesis import strategies as st
from penstock_proto.telemetry_pb2 import CachedPrompt, StepReport
from penstock_runtime.prompt_marks import Mark, PromptMarks, prompt_marks
from penstock_sidecar.mirror.prefix_index import PrefixIndex
from penstock_sidecar.mirror.reported_prefixes import MOST_REPORTED, ReportedPrefixes, reported_marks
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


def keys(reported: ReportedPrefixes) -> set[int]:
    return {change.key for change in reported.all()}


def test_a_prompts_whole_and_its_doubled_prefixes_are_reported() -> None:
    index, marks = PrefixIndex(), chat(*"abcdefghijk")
    index.add("one", marks)
    reported(index, "one", 1100, 1088)
    assert keys(index.reported) == {marks.marks[at].key for at in (0, 1, 3, 7, 10)}


def test_only_cached_prefixes_are_reported() -> None:
    index, marks = PrefixIndex(), chat(*"abcdefgh")
    index.add("one", marks)
    reported(index, "one", 800, 400)
    assert keys(index.reported) == {marks.marks[at].key for at in (0, 1, 3)}
    reported(index, "one", 800, 0)
    assert keys(index.reported) == set()


def test_two_prompts_that_share_a_part_are_found_by_more_than_half_of_it() -> None:
    index = PrefixIndex()
    index.add("one", chat(*"abcdefghijk", "another question"))
    reported(index, "one", 1200, 1200)
    shared = chat(*"abcdefghijk", "a question").marks[:11]
    longest = max(at + 1 for at, mark in enumerate(shared) if mark.key in keys(index.reported))
    assert longest > 11 / 2


def test_a_shared_prefix_is_reported_until_its_last_prompt_is_evicted() -> None:
    index = PrefixIndex()
    for name in ("one", "two"):
        index.add(name, chat("system", name))
        reported(index, name, 200, 192)
    [system] = chat("system").marks
    reported(index, "one", 200, 0)
    assert system.key in keys(index.reported)
    reported(index, "two", 200, 0)
    assert system.key not in keys(index.reported)


def test_a_cache_that_was_reset_has_no_prefixes() -> None:
    index = PrefixIndex()
    index.add("one", chat("a"))
    reported(index, "one", 100, 96)
    assert keys(index.reported)
    index.add("two", chat("b"))
    reported(index, "two", 100, 96, resets=1)
    assert keys(index.reported) == {mark.key for mark in chat("b").marks}


def test_reported_prefixes_are_bounded_without_the_least_recently_served(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_sidecar.mirror.reported_prefixes.MOST_REPORTED", 4)
    reported = ReportedPrefixes()
    for number in range(10):
        reported.report(str(number), (number, 100 + number))
    assert keys(reported) == {8, 9, 108, 109}


def test_a_reader_that_is_far_behind_gets_no_changes() -> None:
    reported = ReportedPrefixes()
    for number in range(MOST_REPORTED + 1):
        reported.report("one", (number,))
    assert reported.since(0) is None
    assert reported.since(reported.count) == []


def test_marks_are_few_and_end_with_the_whole_prompt() -> None:
    marks = PromptMarks(tuple(Mark(at, at) for at in range(400)))
    assert reported_marks(marks) == [0, 1, 3, 7, 15, 31, 63, 127, 255, 399]
    assert reported_marks(PromptMarks(marks.marks[:1])) == [0]
    assert reported_marks(PromptMarks(marks.marks[:2])) == [0, 1]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcd"), st.lists(st.integers(0, 9), unique=True, max_size=4), st.booleans()
        ),
        max_size=60,
    )
)
def test_a_reader_of_changes_has_all_reported_prefixes(steps: list[tuple[str, list[int], bool]]) -> None:
    reported, known, count = ReportedPrefixes(), set[int](), 0
    for name, numbers, reads in steps:
        reported.report(name, tuple(numbers))
        if reads:
            for change in reported.since(count) or ():
                if change.cached:
                    known.add(change.key)
                else:
                    known.discard(change.key)
            count = reported.count
            assert known == keys(reported)
