"""What an engine is asked, and how readings become points: no engine needed."""

from math import inf
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.timing.fit import Point
from penstock_core.timing.time_model import BatchWork, chunk_work
from penstock_profiler.decoding import Decoding
from penstock_profiler.engine import Drafts, Seen, Stream
from penstock_profiler.measure import context_in_the_middle, gaps_s, lengthened, speculated
from penstock_profiler.plan import (
    ANSWER_TOKENS,
    Decodes,
    Limits,
    Prefill,
    Probe,
    from_ends,
    interleaved,
    plan,
)
from penstock_profiler.profiling import ROUNDS, Readings, reading, uncertainty

limits = st.builds(
    Limits,
    prompt_tokens=st.integers(64, 5000),
    requests=st.integers(1, 64),
    context_tokens=st.integers(600, 9000),
    kv_tokens=st.none() | st.integers(1000, 100_000),
)


@given(limits)
def test_every_probe_is_within_the_engines_bounds_and_there_once(bounds: Limits) -> None:
    probes = plan(bounds)
    assert len(set(probes)) == len(probes)
    for probe in probes:
        if isinstance(probe, Prefill):
            assert 1 <= probe.prompt_tokens <= bounds.prompt_tokens
        else:
            assert 1 <= probe.requests <= bounds.requests
            assert probe.prompt_tokens + ANSWER_TOKENS <= bounds.context_tokens
            assert probe.requests * (probe.prompt_tokens + ANSWER_TOKENS) <= (bounds.kv_tokens or 10**9)


def test_whoever_stops_early_has_seen_small_and_large() -> None:
    first = plan(Limits(2048, 32, 8192))[:6]
    assert first[:4] == [Prefill(16), Decodes(1, 64), Prefill(2048), Decodes(32, 64)]
    assert {type(probe) for probe in first} == {Prefill, Decodes}


@given(st.lists(st.integers(), unique=True))
def test_from_the_ends_inwards_loses_nothing(items: list[int]) -> None:
    order = from_ends(items)
    assert sorted(order) == sorted(items)
    assert order[:2] == ([items[0], items[-1]] if len(items) > 1 else items)


def test_the_longer_list_goes_on_alone() -> None:
    assert interleaved([1, 2, 3, 4], [10, 20]) == [1, 10, 2, 20, 3, 4]


def test_a_batch_without_drafts_takes_the_gap_between_its_tokens() -> None:
    assert speculated(8, 4000, 0.02, 96, Drafts()) == Point(BatchWork(8, 4000), 0.02)


def test_accepted_drafts_make_a_batch_longer_than_the_gap() -> None:
    # 60 tokens of 4 requests, 20 of them accepted drafts: 40 iterations of one request, with 80 drafts
    point = speculated(4, 1000, 0.01, 60, Drafts(drafted=80, accepted=20))
    assert point.work == BatchWork(4 * 3, 1000, 0.0, 2)
    assert point.seconds == pytest.approx(0.015)


def seen(*at_ms: float) -> list[Seen]:
    """A token at each of these."""
    return [Seen(at / 1e3, tokens) for tokens, at in enumerate(at_ms)]


def test_neither_a_stall_nor_tokens_that_came_together_make_a_gap_longer() -> None:
    steady = seen(*range(0, 250, 10))
    assert gaps_s(steady) == pytest.approx([0.010] * 21)
    stalled = seen(*range(0, 100, 10), *range(1100, 1250, 10))
    assert median(gaps_s(stalled)) == pytest.approx(0.010)
    in_pairs = seen(*[at // 20 * 20 for at in range(0, 250, 10)])
    assert median(gaps_s(in_pairs)) == pytest.approx(0.010)


def test_gaps_of_a_window_that_merges_all_its_tokens_are_their_mean() -> None:
    assert gaps_s([Seen(1.0, 5), Seen(1.3, 8)]) == pytest.approx([0.1])


def beside(*at_ms: float) -> Stream:
    """A request of one token that decodes."""
    return Stream(0.0, 1, [Seen(at / 1e3, tokens) for tokens, at in enumerate(at_ms, 1)])


def test_a_prefill_is_the_gap_that_ends_with_its_first_token() -> None:
    prompt = Stream(0.044, 99, [Seen(0.0902, 1)])
    point = lengthened(beside(10, 20, 30, 40, 50, 90, 100, 110), prompt, way_s=0.002)
    assert point is not None
    assert point.work == BatchWork(100, 1 + 6, chunk_work(99, 0))
    assert point.seconds == pytest.approx(0.040)


def test_the_last_of_several_iterations_of_a_prompt_is_no_prefill_of_it() -> None:
    prompt = Stream(0.044, 99, [Seen(0.170, 1)])
    assert lengthened(beside(10, 20, 30, 40, 50, 90, 130, 170, 180), prompt, way_s=0.002) is None


def test_an_engine_that_answers_one_after_the_other_shows_no_gap() -> None:
    prompt = Stream(0.044, 99, [Seen(0.170, 1)])
    assert lengthened(beside(10, 20, 30, 40, 50, 60), prompt, way_s=0.002) is None


def test_a_request_with_one_gap_shows_no_usual_one_to_compare_with() -> None:
    prompt = Stream(0.044, 99, [Seen(0.0902, 1)])
    assert lengthened(beside(10, 90), prompt, way_s=0.002) is None


async def test_the_context_of_decodes_is_that_in_the_middle_of_what_was_seen() -> None:
    windows = [[Seen(1.0, 4), Seen(2.0, 20)], [Seen(1.0, 5), Seen(2.0, 23)]]
    together = Decoding([Stream(0.0, 100), Stream(0.0, 300)], [])
    assert context_in_the_middle(together, windows) == 400 + (12 + 14)


def test_every_probe_is_read_before_any_is_read_again_for_what_it_tells() -> None:
    probes: list[Probe] = [Prefill(16), Prefill(1024), Decodes(4, 64)]
    took_s = {probes[0]: 0.01, probes[1]: 1.0, probes[2]: 0.02}
    asked: list[Probe] = []
    read = Readings()
    order = read.order(probes)
    for number, probe in enumerate(order):
        if number == 120:
            break
        asked.append(probe)
        point = Point(BatchWork(8), 0.01 * (1 + number // 3 % 3))
        read.note(probe, None if probe == probes[2] else point, took_s[probe])
    assert asked[: ROUNDS * 3] == probes * ROUNDS
    assert probes[2] not in asked[ROUNDS * 3 :], "it never came to anything"
    assert asked.count(probes[0]) > 5 * asked.count(probes[1]) > 5 * ROUNDS


def test_nothing_is_read_again_once_all_is_known() -> None:
    read = Readings()
    for probe in (asked := read.order([Prefill(16)])):
        read.note(probe, Point(BatchWork(16), 0.01), 0.1)
    assert len(read.points[Prefill(16)]) == ROUNDS
    assert next(asked, None) is None


def test_probes_are_known_the_better_the_more_often_they_were_read() -> None:
    work = BatchWork(8, 800)
    once, spread = [Point(work, 0.01)], [Point(work, 0.009), Point(work, 0.01), Point(work, 0.011)]
    assert uncertainty([]) == inf
    assert uncertainty([spread]) == pytest.approx(1.25 * 0.2 / 3 / 3**0.5)
    assert uncertainty([spread * 4]) < uncertainty([spread])
    assert uncertainty([once, spread]) == pytest.approx(uncertainty([spread]) / 2)


def test_a_stalled_reading_does_not_move_its_probe() -> None:
    work = BatchWork(8, 800)
    found = reading(Decodes(8, 100), [Point(work, 0.010), Point(work, 0.011), Point(work, 0.5)])
    assert found.point == Point(work, 0.011)
    assert found.times == 3
    assert found.spread > 1


def test_noise_is_the_mean_spread_of_probes_that_were_read_again() -> None:
    read, work = Readings(), BatchWork(8, 800)
    assert read.noise == 0
    for probe, seconds in ((Prefill(16), 0.9), (Prefill(16), 1.0), (Prefill(16), 1.1), (Prefill(64), 5.0)):
        read.note(probe, Point(work, seconds), 0.1)
    read.note(Prefill(128), None, 0.1)
    assert read.noise == pytest.approx(0.2 / 3)
