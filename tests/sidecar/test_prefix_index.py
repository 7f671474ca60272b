"""The sidecar's estimate of a new prompt's cached prefix."""

import json
from random import Random
from typing import Any

import pytest
from penstock_proto.telemetry_pb2 import CachedPrompt, StepReport
from penstock_runtime.prompt_marks import PIECE_BYTES, PromptMarks, prompt_marks
from penstock_sidecar.mirror import prefix_index
from penstock_sidecar.mirror.prefix_index import MARGIN, PrefixIndex


def chat(*contents: str) -> PromptMarks:
    messages = [{"role": "user", "content": content} for content in contents]
    return prompt_marks(json.dumps({"messages": messages}).encode())


def report(*cached: tuple[str, int, int], **fields: Any) -> StepReport:
    prompts = [
        CachedPrompt(request_id=name, prompt_tokens=tokens, cached_tokens=found)
        for name, tokens, found in cached
    ]
    return StepReport(
        **{"engine_instance": "e", "caches_prefixes": True, "cached_prompts": prompts, **fields}
    )


@pytest.fixture
def index() -> PrefixIndex:
    """Of an engine that has computed one prompt of 100 tokens, of which 96 are cached."""
    index = PrefixIndex()
    index.add("a", chat("one", "two"))
    index.take(report(("a", 100, 96)), 0)
    return index


def test_a_turn_finds_its_whole_previous_turn(index: PrefixIndex) -> None:
    found = index.longest(chat("one", "two", "three"))
    assert found is not None
    assert (found.tokens, found.exact, found.cached_tokens, found.request_id) == (100, True, 96, "a")
    assert found.share == pytest.approx(2 / 3, abs=0.03)


def test_within_a_prompt_the_cached_share_is_estimated_low(index: PrefixIndex) -> None:
    found = index.longest(chat("one", "other"))
    assert found is not None
    assert (found.tokens, found.exact) == (int(50 * (1 - MARGIN)), False)
    assert found.cached_tokens == found.tokens


def test_token_ids_are_exact_within_a_prompt() -> None:
    index, ids = PrefixIndex(), list(range(1000, 2000))
    marks = prompt_marks(json.dumps({"prompt": ids}).encode())
    index.add("a", marks)
    index.take(report(("a", 1000, 992)), 0)
    found = index.longest(prompt_marks(json.dumps({"prompt": [*ids[:500], *ids]}).encode()))
    assert found is not None
    assert found.tokens in range(500 - PIECE_BYTES // 6, 501)
    assert found.cached_tokens == found.tokens


def test_a_prompt_that_was_not_reported_is_not_found() -> None:
    index = PrefixIndex()
    index.add("a", chat("one"))
    index.add("none", PromptMarks())
    assert index.longest(chat("one")) is None
    index.take(report(("b", 10, 10), ("a", 100, 0)), 0)
    assert (index.longest(chat("one")), len(index)) == (None, 1)
    assert index.longest(PromptMarks()) is None


def test_cached_tokens_never_exceed_the_prompt(index: PrefixIndex) -> None:
    index.take(report(("a", 100, 4_000_000)), 0)
    found = index.longest(chat("one", "two"))
    assert found is not None
    assert found.cached_tokens == 100


@pytest.mark.parametrize(
    ("then", "lost"),
    [
        (report(("a", 100, 0)), 0),
        (report(), 1),
        (report(cache_resets=1), 0),
        (report(engine_instance="after its restart"), 0),
    ],
    ids=["evicted", "report lost", "reset", "restarted"],
)
def test_a_prefix_that_may_be_evicted_counts_as_not_cached(
    index: PrefixIndex, then: StepReport, lost: int
) -> None:
    index.take(then, lost)
    found = index.longest(chat("one", "two"))
    assert found is not None
    assert (found.tokens, found.cached_tokens) == (100, 0), "its length is still known"
    index.take(
        report(
            ("a", 100, 48),
            **{field.name: value for field, value in then.ListFields() if field.name != "cached_prompts"},
        ),
        0,
    )
    again = index.longest(chat("one", "two"))
    assert again is not None
    assert again.cached_tokens == 48


def test_a_prompt_that_the_engine_has_not_computed_is_not_reported_when_its_cache_is_lost() -> None:
    index = PrefixIndex()
    index.take(report(), 0)
    index.add("accepted", chat("one", "two"))
    index.forget_cached()
    index.take(report(engine_instance="another"), 0)
    assert not index.reported.all()


def test_an_earlier_prompt_counts_where_the_latest_with_that_prefix_is_evicted(index: PrefixIndex) -> None:
    for name in ("b", "c"):
        index.add(name, chat("one", name))
        index.take(report((name, 100, 96)), 0)
    new = chat("one", "other")
    for evicted, expected in (("", "c"), ("c", "b"), ("b", "a")):
        index.take(report((evicted, 100, 0)), 0)
        found = index.longest(new)
        assert found is not None
        assert (found.request_id, found.cached_tokens) == (expected, found.tokens)
    index.take(report(("a", 100, 0)), 0)
    found = index.longest(new)
    assert found is not None and found.cached_tokens == 0


def test_a_dropped_prompt_leaves_its_prefix_to_an_earlier_one(
    index: PrefixIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add("b", chat("one", "b"))
    index.take(report(("b", 100, 96)), 0)
    index.take(report(("a", 100, 0)), 0)
    index.take(report(("a", 100, 96)), 0)  # served again, so it is the latest
    monkeypatch.setattr(prefix_index, "MOST_PROMPTS", 2)
    index.add("c", chat("another"))
    assert "b" not in index
    found = index.longest(chat("one", "other"))
    assert found is not None and found.request_id == "a"


def test_an_engine_that_reports_no_cache_has_no_prefixes(index: PrefixIndex) -> None:
    assert index.used
    index.take(StepReport(engine_instance="older"), 0)
    assert not index.used


def test_shared_prefixes_are_counted_once() -> None:
    index = PrefixIndex()
    for name, texts, tokens in (("a", ["one"], 100), ("b", ["one", "two"], 200), ("c", ["other"], 50)):
        index.add(name, chat(*texts))
        index.take(report((name, tokens, tokens)), 0)
    assert index.cached_tokens() == 50 + 200 + 100 - 100
    index.take(report(("b", 200, 0)), 0)
    assert index.cached_tokens() == 50 + 100


def test_the_index_is_bounded_in_prompts_and_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_index, "MOST_PROMPTS", 3)
    index = PrefixIndex()
    for number in range(5):
        index.add(str(number), chat("same", str(number)))
        index.take(report((str(number), 32, 32)), 0)
    assert len(index) == 3
    found = index.longest(chat("same", "0"))
    assert found is not None
    assert (found.tokens, found.exact, found.request_id) == (15, False, "4")
    monkeypatch.setattr(prefix_index, "MOST_MARKS", 6)
    index.add("5", chat(*"abcde"))
    assert len(index) == 1
    index.add("6", chat(*"abcdefgh"))
    assert len(index) == 1, "one that is too long is left out"


def test_random_sessions_never_find_more_than_their_common_prefix() -> None:
    """Tokens here are bytes of JSON, evenly spread, so a prefix's tokens are its size."""
    random, index = Random(3), PrefixIndex()
    sessions: dict[str, list[str]] = {}
    sent: list[tuple[list[str], int]] = []
    for number in range(400):
        name = str(random.randrange(20))
        turns = sessions.setdefault(name, [f"system {random.randrange(3)}"])
        marks = chat(*turns)
        found = index.longest(marks)
        best = max((_shared(turns, before, cached) for before, cached in sent), default=0)
        assert (0 if found is None else found.cached_tokens) <= best
        index.add(str(number), marks)
        cached = random.choice([marks.size, marks.size // 2])
        index.take(report((str(number), marks.size, cached)), 0)
        sent.append((list(turns), cached))
        turns.append(f"{name} {number}")


def _shared(one: list[str], other: list[str], cached: int) -> int:
    same = next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    return min(chat(*one[:same]).size if same else 0, cached)
